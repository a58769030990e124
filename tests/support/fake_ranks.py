"""Ranks without a trainer: what a supervisor sees of a rank is its process, its exit code and the group's event log."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

from configs.run_folder import EventLog, RunFolder, read_events
from ops.launch.ranks import RankSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """Exit codes by life (the first life is 0) and rank; a rank without one stays until it is told to drain."""

    root: Path
    codes: dict[int, dict[int, int]] = dataclasses.field(default_factory=dict)
    commits: bool = True
    hold: bool = False
    """Ignore SIGTERM."""


def lives(folder: RunFolder, group: str) -> list[dict]:
    """The ``start`` events of a group."""
    return [e for e in read_events(folder.event_log(group)) if e["event"] == "start"]


def fake_rank(script: Script, spec: RankSpec) -> None:
    """Rank 0 writes the group's log, as a lead does; every rank leaves its pid behind first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if script.hold else lambda *_: os._exit(75))
    folder = RunFolder(script.root)
    life = len(lives(folder, spec.group))
    own = pid_file(script.root, spec.group, spec.rank)
    own.with_suffix(f".{os.getpid()}").write_text(str(os.getpid()))
    own.with_suffix(f".{os.getpid()}").replace(own)
    if spec.rank == 0:
        _lead(script, spec, folder, life)
    code = script.codes.get(life, {}).get(spec.rank)
    if code is None:
        _stay(script, spec, life)
    else:
        _wait_for_start(folder, spec.group, life)
        print(f"rank {spec.rank} ends with {code}")
        os.kill(os.getpid(), -code) if code < 0 else os._exit(code)


def pid_file(root: Path, group: str, rank: int) -> Path:
    return root / f"{group}.{rank}.pid"


def _lead(script: Script, spec: RankSpec, folder: RunFolder, life: int) -> None:
    assert spec.listener is not None
    assert spec.listener.getsockname()[1] == spec.store_port
    fellows = [pid_file(script.root, spec.group, rank) for rank in range(spec.world)]
    before = {pid for start in lives(folder, spec.group) for pid in start["pids"]}
    while not all(path.exists() and int(path.read_text()) not in before for path in fellows):
        time.sleep(0.005)  # a file of the life before names the dead
    log = EventLog(folder.event_log(spec.group), group=spec.group, incarnation=life + 1)
    shares = {spec.group: [life]} if script.commits else {}
    log("start", pids=[int(p.read_text()) for p in fellows], host=os.uname().nodename, ranks=spec.world,
        endpoint={"metrics": f"http://127.0.0.1:{9000 + life}"})  # fmt: skip
    if script.commits:
        log("commit", step=life + 1, lineage=f"{life + 1}:1.{life + 1}", shares=shares, participants=[spec.group],
            outcome="updated", samples=1, tokens=8, loss=1.0)  # fmt: skip


def _stay(script: Script, spec: RankSpec, life: int) -> None:
    """Until told to drain; rank 0's fellows end with 7 once it is gone, as ranks do that lose their lifeline."""
    if spec.rank == 0 or script.hold:
        threading.Event().wait()
    lead = pid_file(script.root, spec.group, 0)
    while len(lives(RunFolder(script.root), spec.group)) <= life:
        time.sleep(0.005)
    while Path(f"/proc/{lead.read_text() or 'self'}").exists():
        time.sleep(0.005)
    os._exit(7)


def _wait_for_start(folder: RunFolder, group: str, life: int) -> None:
    """A rank ends only once its life is on record, so that the next one can count."""
    while len(lives(folder, group)) <= life:
        time.sleep(0.005)
