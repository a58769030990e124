"""A program that says on which cores it may run."""

from __future__ import annotations

import os

print(*sorted(os.sched_getaffinity(0)))
