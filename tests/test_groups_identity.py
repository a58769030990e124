"""Who a process is, and that what it serves is seen by nobody but its own machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from configs.secret import address_of
from replica_groups.identity import Place, open_group_store, place_from_environment, serve_seat_store

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_place_comes_from_torchruns_variables():
    place = place_from_environment(TORCHRUN)
    assert (place.rank, place.world, place.local_rank) == (3, 4, 1)
    assert (place.store_host, place.store_port) == ("127.0.0.1", 29500)
    assert (place.group, place.lighthouse, place.under_torchrun) == ("g0", None, False)


def test_group_and_coordinator_come_from_our_own_two():
    extra = {"PHALANX_GROUP": "g7", "PHALANX_LIGHTHOUSE": "http://h:1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    place = place_from_environment({**TORCHRUN, **extra})
    assert (place.group, place.lighthouse, place.under_torchrun) == ("g7", "http://h:1", True)


def test_everything_that_is_missing_is_named_at_once():
    with pytest.raises(ValueError, match=r"WORLD_SIZE, MASTER_PORT not set.*phalanx launch"):
        place_from_environment({k: v for k, v in TORCHRUN.items() if k not in ("WORLD_SIZE", "MASTER_PORT")})


def listening(port: int) -> set[str]:
    """Local addresses (as /proc shows them) on which this machine listens at ``port``."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.add(address.rpartition(":")[0])
    return found


def test_seat_store_listens_on_its_host_only():
    store, address = serve_seat_store(host="127.0.0.1", timeout_s=5)
    assert listening(int(address.rpartition(":")[2])) == {"0100007F"}
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_group_store_is_served_on_the_launchers_socket_only():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        base = {"group": "g0", "world": 2, "store_host": "127.0.0.1", "store_port": port, "life": "a"}
        zero = open_group_store(Place(**base, rank=0, local_rank=0, listener=listener), timeout_s=5)
        one = open_group_store(Place(**base, rank=1, local_rank=1), timeout_s=5)
        zero.set("birth", "7")
        assert one.get("birth") == b"7"
        assert listening(port) == {"0100007F"}
        del zero, one
        os.fstat(listener.fileno())  # the launcher's socket is still open: the next life listens on it


def test_lives_of_a_group_do_not_read_each_others_store():
    server, address = serve_seat_store(host="127.0.0.1", timeout_s=5)
    base = {"group": "g0", "world": 1, "rank": 0, "local_rank": 0, "store_host": "127.0.0.1", "under_torchrun": True}
    port = int(address.rpartition(":")[2])
    first, second = (open_group_store(Place(**base, store_port=port, life=life), timeout_s=5) for life in ("0", "1"))
    first.set("birth", "old")
    assert not second.check(["birth"])
    del server


def test_address_of_an_interface():
    assert address_of("lo") == "127.0.0.1"


def test_unknown_interface_names_the_key_and_those_there_are():
    with pytest.raises(ValueError, match=r"fault_tolerance.interface = 'nope0' has no IPv4 address .* there are .*lo"):
        address_of("nope0")


def test_a_torchrun_that_is_started_again_is_no_life_that_the_lighthouse_knows():
    """Its restart count begins at 0 each time: as a life it would be that of its buried predecessor."""
    place = place_from_environment({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "0"})
    assert (place.life, place.restart) == ("", "0")
