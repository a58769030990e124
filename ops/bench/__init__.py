"""Measured comparisons: Phalanx and what it is compared with, in one run of one command."""
