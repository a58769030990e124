"""Importing this module turns the importing process into the warm server. Nothing but the forkserver may import it.

The forkserver imports it first, then everything a rank needs (``ops.launch.warm`` names the modules). The server must
die with the supervisor even while its own children hold the pipe by which multiprocessing would notice: so it asks the
kernel. It leaves the terminal's session, so that Ctrl-C reaches the supervisor alone, and keeps stdout free of whatever
a child prints, because a command with ``--json`` owns it.
"""

from __future__ import annotations

import os
import sys

from configs.lifetime import die_with_parent

SERVER_PID = os.getpid()

die_with_parent()
os.setsid()
sys.stdout.flush()
os.dup2(2, 1)
