"""Faults on purpose: who is killed, and when."""
