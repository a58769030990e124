"""Injected faults: at the named place, once in the life of a run."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
import timeit
from pathlib import Path

import pytest
import torch

from configs.failpoints import parse
from configs.run_folder import EventLog, read_events
from tests.support.states import Recorder
from trainer.damage import flip_bit
from trainer.failpoints import Failpoints, InjectedError, no_failpoints


def points(*texts: str, group: str = "g0", rank: int = 0, past=(), sink=None, poison=None) -> Failpoints:
    made = [parse(text) for text in texts]
    return Failpoints(made, group=group, rank=rank, past=past, sink=sink or Recorder(), poison=poison)


def fires(hit: Failpoints, name: str) -> bool:
    try:
        hit(name)
    except InjectedError:
        return True
    return False


def test_point_fires_once():
    hit = points("g0:reduce:raise")
    assert [fires(hit, "reduce") for _ in range(3)] == [True, False, False]


def test_two_points_of_one_name_fire_one_by_one():
    hit = points("g0:reduce@1:raise", "g0:reduce@2:raise")
    fired = []
    for step in (0, 1, 1, 2, 2, 3):
        hit.step = step
        fired.append(fires(hit, "reduce"))
    assert fired == [False, True, False, True, False, False]


@pytest.mark.parametrize(
    ("text", "group", "rank", "name", "fired"),
    [
        ("g0:reduce:raise", "g0", 0, "reduce", True),
        ("g0:reduce:raise", "g1", 0, "reduce", False),
        ("g0:reduce:raise", "g0", 1, "reduce", False),
        ("g0:reduce#1:raise", "g0", 1, "reduce", True),
        ("g0:reduce:raise", "g0", 0, "summary", False),
    ],
)
def test_point_belongs_to_one_rank_of_one_group_and_one_place(text, group, rank, name, fired):
    assert fires(points(text, group=group, rank=rank), name) is fired


def test_point_waits_for_its_step_and_microbatch():
    hit = points("g0:backward@20.1:raise")
    fired = []
    for step, microbatch in ((19, 1), (20, 0), (20, None), (20, 1)):
        hit.step = step
        hit.at_microbatch(microbatch)
        fired.append(fires(hit, "backward"))
    assert fired == [False, False, False, True]


def test_a_point_of_a_bucket_waits_for_it():
    hit = points("g0:reduce@.2:raise", "g0:reduce_before:raise")
    assert fires(hit, "reduce_before")
    fired = []
    for bucket in (0, 1, 2, 2):
        try:
            hit("reduce", bucket)
            fired.append(False)
        except InjectedError:
            fired.append(True)
    assert fired == [False, False, True, False]


@pytest.mark.parametrize(
    ("text", "at"), [("g0:heal_recv:raise", 4), ("g0:heal_recv@.75:raise", 6), ("g0:heal_recv@.100:raise", 8)]
)
def test_a_point_of_a_heal_waits_for_its_share_of_the_state(text, at):
    hit = points(text)
    for done in range(1, at):
        hit("heal_recv", done=done, total=8)
    with pytest.raises(InjectedError):
        hit("heal_recv", done=at, total=8)


def test_the_step_of_a_save_is_that_of_what_is_saved():
    hit = points("g0:save_write@4:raise")
    hit.step = 6
    assert hit("save_write", step=3) is None
    with pytest.raises(InjectedError):
        hit("save_write", step=4)


def test_a_disk_that_is_full_is_the_error_of_one():
    with pytest.raises(OSError, match="No space left on device") as caught:
        points("g0:save_stage:full")("save_stage")
    assert caught.value.errno == errno.ENOSPC


def test_what_a_place_must_do_itself_it_is_told():
    hit = points("g0:heal_send@.0:corrupt", "g0:heal_send@.50:truncate")
    assert [hit("heal_send", done=done, total=4) for done in range(4)] == ["corrupt", None, "truncate", None]


def test_who_is_stopped_for_a_time_goes_on_after_it():
    program = """
        import time
        from configs.failpoints import parse
        from trainer.failpoints import Failpoints
        began = time.monotonic()
        Failpoints([parse("g0:build:stop=0.3")], group="g0", rank=0, past=(), sink=lambda _, **fields: None)("build")
        print(time.monotonic() - began)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=True, capture_output=True, text=True
    )
    assert float(done.stdout) >= 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_flipped_bit_changes_one_element_and_stays_finite(dtype):
    shards = [torch.ones(0, dtype=dtype), torch.full((2, 3), 1.25, dtype=dtype)]
    before = shards[1].clone()
    flip_bit(shards, where="g0/0/5")
    assert (shards[1] != before).sum() == 1
    assert shards[1].isfinite().all()
    flip_bit(shards, where="g0/0/5")
    assert torch.equal(shards[1], before)


def test_memories_that_fail_at_once_do_not_fail_alike():
    found = set()
    for group in ("g0", "g1", "g2"):
        shard = torch.ones(1000)
        flip_bit([shard], where=f"{group}/0/5")
        found.add(int((shard != 1).nonzero()))
    assert len(found) == 3


def test_a_point_that_is_not_set_costs_next_to_nothing(record_property):
    """A few nanoseconds in a step of 0.1 s and more; the limit allows for a busy machine."""
    hit = points()
    calls = 200_000
    ns = min(timeit.repeat(lambda: hit("reduce", 1), number=calls, repeat=5)) / calls * 1e9
    record_property("ns", ns)
    print(f"\na call with nothing set: {ns:.0f} ns")
    assert ns < 5_000


def test_successor_that_reads_the_log_does_not_fire_again(tmp_path):
    log = EventLog(tmp_path / "g0.jsonl", group="g0", incarnation=1)
    text = "g0:reduce@3:raise"
    first = points(text, sink=log, past=read_events(tmp_path / "g0.jsonl"))
    first.step = 3
    assert fires(first, "reduce")
    second = points(text, "g0:reduce@4:raise", sink=log, past=read_events(tmp_path / "g0.jsonl"))
    second.step = 3
    assert not fires(second, "reduce")
    second.step = 4
    assert fires(second, "reduce")  # another point of the same run still does


def test_fault_is_on_record_before_the_process_is_gone(tmp_path):
    """A SIGKILL leaves no second chance to write."""
    program = """
        import sys
        from pathlib import Path
        from configs.failpoints import parse
        from configs.run_folder import EventLog
        from trainer.failpoints import Failpoints
        log = EventLog(Path(sys.argv[1]), group="g0", incarnation=1)
        hit = Failpoints([parse("g0:vote_after@5:kill")], group="g0", rank=0, past=(), sink=log)
        hit.step = 5
        hit("vote_after")
    """
    path = tmp_path / "g0.jsonl"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], timeout=60, check=False)
    assert done.returncode == -9
    (event,) = read_events(path)
    assert (event["event"], event["failpoint"], event["action"]) == ("fault", "g0:vote_after@5#0:kill", "kill")
    assert event["step"] == 5


def test_exit_ends_the_process_with_its_code():
    program = """
        from configs.failpoints import parse
        from trainer.failpoints import Failpoints
        Failpoints([parse("g0:build:exit=6")], group="g0", rank=0, past=(), sink=lambda _, **fields: None)("build")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=False)
    assert done.returncode == 6


def test_nan_poisons_and_goes_on():
    poisoned = []
    hit = points("g0:backward:nan", poison=lambda: poisoned.append(True))
    hit("backward")
    assert poisoned == [True]


def test_delay_sleeps_so_long(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("trainer.failpoints.time.sleep", slept.append)
    points("g0:build:delay=12.5")("build")
    assert slept == [12.5]


def test_run_without_failpoints_does_nothing():
    no_failpoints("reduce", anything=1)
    points()("reduce")


def test_every_named_place_is_reached_by_the_code():
    """A failpoint that nobody calls would let a chaos run pass without its fault."""
    from configs.failpoints import NAMES

    root = Path(__file__).parent.parent
    folders = ("replica_groups", "trainer", "checkpointing")
    source = "".join(p.read_text() for folder in folders for p in (root / folder).rglob("*.py"))
    missing = [name for name in NAMES if not any(f'{call}("{name}"' in source for call in ("failpoint", "failpoints"))]
    assert missing == []
