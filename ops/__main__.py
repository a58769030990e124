"""The ``phalanx`` command."""

from __future__ import annotations


def main() -> int:
    """Entry point of the console script."""
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
