"""How does every process of a run die with the process that started it?

As a program, ``python -m ops.launch.leash PARENT_PID MODULE ARGS...`` ties itself first
and then becomes ``python -m MODULE ARGS...``: nothing runs between fork and exec of a parent that has threads.
"""

from __future__ import annotations

import runpy
import sys

from configs.lifetime import die_with_parent


def main() -> None:
    """Tie this process to its parent, then run a module in it."""
    parent, module, *arguments = sys.argv[1:]
    die_with_parent(parent=int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
