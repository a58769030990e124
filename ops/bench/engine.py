"""torchft's lighthouse alone, in a process of its own: ``python -m ops.bench.engine MEMBERS``; prints its address.

What the gateway is compared with: the same engine, with torchft's defaults, asked by the same client.
"""

from __future__ import annotations

import signal
import sys

from lighthouse.engine import load_torchft


def main() -> None:
    """Serve until killed."""
    torchft = load_torchft()
    server = torchft.LighthouseServer(bind="127.0.0.1:0", min_replicas=int(sys.argv[1]))
    port = server.address().rsplit(":", 1)[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
