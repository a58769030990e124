"""torchft's ManagerServer as a process of its own: torchft_manager.py MODULE REPLICA_ID LIGHTHOUSE_URL.

A call to a server of this process would wait for its whole time limit after a refusal; a call to a process that is
killed ends at once. Run as a file, with nothing imported but torchft's compiled module, because it is started often.
"""

import importlib.util
import os
import sys
from datetime import timedelta


def main(path, replica_id, url):
    spec = importlib.util.spec_from_file_location("torchft._torchft", path)
    torchft = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(torchft)
    manager = torchft.ManagerServer(
        replica_id=replica_id,
        lighthouse_addr=url,
        hostname="127.0.0.1",
        bind="127.0.0.1:0",
        store_addr="store",
        world_size=1,
        heartbeat_interval=timedelta(seconds=1),
        connect_timeout=timedelta(seconds=10),
        quorum_retries=0,
    )
    print(manager.address().rsplit(":", 1)[1], flush=True)
    sys.stdin.read()  # until its owner is gone
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
