"""A good run's event logs, made by hand, for judges: who lies about it changes one thing.

Two groups, four microbatches a step. g1 is killed in the third attempt; g0 discards it and makes step 3 alone; g1.2
heals in the attempt that makes step 4. Both die while they make step 6; step 5 had not been saved, step 4 had, so the
history goes back to 4 and steps 5 and 6 are made once more.
"""

from __future__ import annotations

from typing import Any

from configs.words import Lineage, join_quorum_id

Event = dict[str, Any]
EPOCH = 100


def qid(number: int) -> int:
    return join_quorum_id(epoch=EPOCH, running=number)


class Teller:
    """Writes the logs of a run, one tenth of a second an event."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Event]] = {"lighthouse": [], "launcher": [], "g0": [], "g1": []}
        self.now = 1000.0
        self.current = Lineage(0, 0)
        self.lives = {"g0": 0, "g1": 0}
        self.attempt = 0
        self.seated: list[str] = []
        self.id = 0

    def tell(self, writer: str, event: str, *, group: str | None = None, **fields: Any) -> Event:
        self.now += 0.1
        number = self.lives.get(group or writer) if (group or writer) in self.lives else None
        line = {"t": self.now, "event": event, "group": group or (writer if writer in self.lives else None)}
        line |= {"incarnation": number, **fields}
        self.logs[writer].append(line)
        return line

    def start(self, *groups: str) -> None:
        for group in groups:
            self.lives[group] += 1
            self.tell("lighthouse", "join", group=group)
            self.tell(group, "start", pids=[1], host="h", ranks=1, config_digest="c")

    def quorum(self, *groups: str, healing: tuple[str, ...] = (), restore: Lineage | None = None, **more: Any) -> None:
        self.attempt += 1
        if list(groups) != self.seated or restore is not None:
            self.seated, self.id = list(groups), self.attempt
        fields = {
            "step": self.current.step,
            "attempt": qid(self.attempt),
            "quorum_id": qid(self.id),
            "epoch": EPOCH,
            "lineage": str(self.current),
            "participants": list(groups),
            "healing": list(healing),
        }
        self.tell("lighthouse", "quorum", **fields, restore=None if restore is None else str(restore), **more)
        for group in groups:
            self.tell(group, "quorum", **fields, seconds=0.4)
            if restore is not None:
                source = "disk" if restore.step else "scratch"
                self.tell(group, "restore", step=restore.step, lineage=str(restore), source=source)
        for group in healing:
            self.tell(group, "heal", step=self.current.step, sources=[g for g in groups if g not in healing], bytes=1)

    def commit(self, *, healing: tuple[str, ...] = ()) -> None:
        step = self.current.step + 1
        self.current = Lineage(step, qid(self.id))
        able = [g for g in self.seated if g not in healing]
        ids = range(4 * (step - 1), 4 * step)
        for group in self.seated:
            self.tell(
                group,
                "commit",
                step=step,
                attempt=qid(self.attempt),
                quorum_id=qid(self.id),
                lineage=str(self.current),
                participants=self.seated,
                healing=list(healing),
                shares={g: [i for i in ids if able and g in able and able[i % len(able)] == g] for g in self.seated},
                outcome="updated",
                samples=8,
                tokens=64,
                loss=9.0 - step,
                grad_norm=1.0,
                lr=step / 10,
                cursor=8 * step,
                digest=f"digest of {step}",
            )

    def confirm(self) -> None:
        names = list(self.seated)
        self.tell("lighthouse", "confirmed", step=self.current.step, lineage=str(self.current), participants=names)

    def save(self, group: str) -> None:
        self.tell(group, "checkpoint", step=self.current.step, lineage=str(self.current), status="saved", bytes=1)

    def die(self, group: str, *, code: int = -9) -> None:
        self.tell("launcher", "fault", group=group, failpoint="every rank", action="kill", step=self.current.step)
        moment = self.tell("launcher", "exit", group=group, code=code, reason="killed")["t"]
        self.tell("lighthouse", "departure", group=group, cause="killed", reason="killed")["t"] = moment + 0.01
        self.tell("launcher", "restart", group=group, reason="killed", code=code, recovery_s=0.5)

    def discard(self, group: str) -> None:
        fields = {"attempt": qid(self.attempt), "quorum_id": qid(self.id), "reason": "peer_lost"}
        self.tell(group, "discard", step=self.current.step, **fields)

    def end(self) -> None:
        self.quorum(*self.seated)
        self.tell("lighthouse", "end", group="g0", step=self.current.step, lineage=str(self.current))
        for group in self.seated:
            self.tell(group, "exit", code=0, reason="complete")
            self.tell("lighthouse", "departure", group=group, cause="left", reason="its stream closed")
            self.tell("launcher", "exit", group=group, code=0, reason="done")
        self.lives = {}
        self.tell("launcher", "exit", code=0, reason="done")


def good_run(*, back_to: int = 4) -> dict[str, list[Event]]:
    """The logs of that run, by writer. ``back_to``: the step to which the history goes back; up to 3 is right."""
    run = Teller()
    run.tell("launcher", "launch", host="h", groups=["g0", "g1"])
    run.tell("launcher", "lighthouse", host="h", pids=[1])
    run.start("g0", "g1")
    run.quorum("g0", "g1", restore=run.current)
    for saver in ("g0", "g1"):
        run.commit()
        run.confirm()
        run.quorum("g0", "g1")
        run.save(saver)
    run.die("g1")
    run.discard("g0")
    run.start("g1")
    run.quorum("g0")
    run.commit()
    run.confirm()
    run.quorum("g0", "g1", healing=("g1",))
    run.save("g0")
    run.commit(healing=("g1",))
    run.confirm()
    run.quorum("g0", "g1")
    run.save("g1")
    run.commit()
    run.confirm()
    run.quorum("g0", "g1")
    run.die("g0")
    run.die("g1")
    run.start("g0", "g1")
    saved = {4: Lineage(4, qid(5)), 3: Lineage(3, qid(4)), 2: Lineage(2, qid(1))}[back_to]
    newest, run.current = run.current, saved
    run.tell("lighthouse", "rollback", **{"from": str(newest)}, to=str(saved), quorum_id=qid(run.attempt + 1))
    run.quorum("g0", "g1", restore=saved)
    while run.current.step < 6:
        run.commit()
        run.confirm()
        if run.current.step < 6:
            run.quorum("g0", "g1")
            run.save("g0")
    run.end()
    return run.logs


def find(logs: dict[str, list[Event]], writer: str, event: str, **fields: Any) -> Event:
    """The first such event of a writer."""
    return next(e for e in logs[writer] if e["event"] == event and all(e.get(k) == v for k, v in fields.items()))
