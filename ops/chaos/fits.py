"""Does a fault make sense, by itself and in the run it is to happen in?

Pure. Each misfit names the key to mend, what was expected there and the nearest known name. A fault that names nobody,
or a moment that never comes, would be waited for in vain, and every fault after it. Called by ``ops.chaos.reading``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

from configs import failpoints
from configs.failpoints import Failpoint
from configs.names import nearest
from configs.schema import Config
from configs.shapes import microbatches, ranks_per_group
from ops.chaos.driver import Target
from ops.chaos.scenario import ACTIONS, ANY, Fault, Matrix

TIMES = ("step", "between", "mtbf_s", "every_s", "trace")
MANY = 10_000
"""Strikes of one series, at most."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Misfit:
    """What is wrong with a key of a table."""

    key: str
    expected: str
    also: tuple[str, ...] = ()
    """Other keys it depends on: where one of them is wrong, this may be no fault of its own."""
    known: Collection[str] = ()
    """The names it could have been."""
    absent: bool = False
    """Nothing was written there."""

    def nearest(self, found: object) -> str | None:
        return nearest(str(found), self.known)


def misfits(fault: Fault) -> Iterator[Misfit]:
    """What is wrong with a fault whatever the run."""
    yield from _action(fault)
    yield from _time(fault)
    yield from _unused(fault)
    if fault.at is None:
        yield from _needs(fault)
    else:
        yield from _point(fault)


def misplaced(fault: Fault, config: Config) -> Iterator[Misfit]:
    """What is wrong with a fault in a run of this config."""
    groups, ranks, steps = config.launch.groups, ranks_per_group(config), config.training.steps
    known = [f"g{number}" for number in range(groups)]
    named = fault.target is not Target.LIGHTHOUSE and fault.trace is None
    if named and fault.group not in (ANY, *known):
        yield Misfit(key="group", expected=f"expected {listed(known)} (the groups of this run) or any", known=known)
    if (
        (fault.at is not None or fault.target is Target.RANK)
        and fault.rank != ANY
        and int(fault.rank) not in range(ranks)
    ):
        yield Misfit(key="rank", expected=f"expected a rank from 0 to {ranks - 1}, the ranks of a group, or any")
    plan = microbatches(config)
    if failpoints.PARTS.get(str(fault.at)) == "microbatch" and (fault.part or 0) >= plan:
        yield Misfit(key="part", expected=f"expected a microbatch below {plan}, those of a step", also=("at",))
    at_point = fault.at in failpoints.NAMES
    last = failpoints.last_step(str(fault.at), steps) if at_point else steps - 1
    between = max(fault.between) if fault.between is not None else None
    for key, found in (("step", fault.step), ("between", between)):
        if found is not None and found > last:
            passes = f"passes {fault.at}" if at_point else "can be struck"
            expected = f"expected at most step {last}, the last at which a run of {steps} steps {passes}"
            yield Misfit(key=key, expected=expected, also=("at",))


def misfits_of_matrix(matrix: Matrix) -> Iterator[Misfit]:
    """What is wrong with the names and actions of a matrix."""
    for key in ("names", "actions"):
        if not getattr(matrix, key):
            yield Misfit(key=key, expected="expected at least one")
    for key, written, known in (
        ("names", matrix.names, failpoints.NAMES),
        ("actions", matrix.actions, failpoints.ACTIONS),
    ):
        for name in written:
            if name not in known:
                near = nearest(name, known)
                hint = f" (did you mean {near}?)" if near else f"; expected some of {', '.join(known)}"
                yield Misfit(key=key, expected=f"{name!r} is unknown{hint}")
    told: set[str] = set()
    for name in matrix.names:
        for action in matrix.actions:
            if name in failpoints.NAMES and action in failpoints.ACTIONS:
                expected = _refusal(Failpoint(group="g1", name=name, action=action))
                if expected is not None and expected not in told:
                    told.add(expected)
                    yield Misfit(key="actions", expected=expected)


def inside(fault: Fault, *, group: str, rank: int, step: int | None) -> Failpoint:
    """The failpoint that a fault with ``at`` comes to."""
    assert fault.at is not None
    return Failpoint(
        group=group,
        name=fault.at,
        step=step,
        part=fault.part,
        rank=rank,
        action=fault.do,
        argument=fault.seconds if fault.do in ("stop", "delay") else fault.amount,
    )


def listed(names: Collection[str]) -> str:
    """Names for people; of many the first and the last."""
    found = list(names)
    return ", ".join(found) if len(found) < 5 else f"{found[0]} to {found[-1]}"


def _action(fault: Fault) -> Iterator[Misfit]:
    known = failpoints.ACTIONS if fault.at is not None else ACTIONS[fault.target]
    if fault.do not in known:
        yield Misfit(key="do", expected=f"expected one of {', '.join(known)}", also=("at", "target"), known=known)
    if fault.at is not None and fault.at not in failpoints.NAMES:
        near = nearest(fault.at, failpoints.NAMES)
        expected = "no such failpoint" if near else f"expected one of {', '.join(failpoints.NAMES)}"
        yield Misfit(key="at", expected=expected, known=failpoints.NAMES)


def _time(fault: Fault) -> Iterator[Misfit]:
    given = [name for name in TIMES if getattr(fault, name) is not None]
    if len(given) > 1:
        yield Misfit(key=given[1], expected=f"expected one of {', '.join(given)}, not several")
    elif not given and fault.at is None:
        expected = "expected a time: step, between, mtbf_s, every_s or trace (or at, a failpoint)"
        yield Misfit(key="step", expected=expected, also=("at", *TIMES), absent=True)
    if fault.at is not None and given not in ([], ["step"], ["between"]):
        yield Misfit(key=given[0], expected="a failpoint has a step or none; this is for faults from outside")
    if (fault.mtbf_s is not None or fault.every_s is not None) and fault.until_s is None:
        yield Misfit(key="until_s", expected="expected until_s, the end of the series", absent=True)
    if fault.trace is not None and fault.target is not Target.NODE:
        yield Misfit(key="target", expected='a trace tells of nodes: expected target = "node"')
    if fault.between is not None and fault.between[0] > fault.between[1]:
        yield Misfit(key="between", expected="expected the first step, then the last")

    for key in ("mtbf_s", "every_s"):
        each = getattr(fault, key)
        if each is not None and fault.until_s is not None and fault.until_s / MANY > each:
            yield Misfit(key=key, expected=f"expected at least {fault.until_s / MANY:g}: {MANY} strikes at most")


def _unused(fault: Fault) -> Iterator[Misfit]:
    """Keys that were written and would do nothing: somebody meant something by them."""
    series = fault.mtbf_s is not None or fault.every_s is not None
    inside, network = fault.at is not None, fault.target is Target.NETWORK
    lasts = fault.do in (("stop", "delay") if inside else ("stop",)) or (not inside and (network or _node(fault)))
    takes = fault.do == "exit" if inside else network and fault.do in ("delay", "rate")
    uses = {
        "group": (fault.trace is None and fault.target is not Target.LIGHTHOUSE) or inside,
        "rank": inside or fault.target is Target.RANK,
        "seconds": lasts,
        "amount": takes,
        "target": not inside,
        "part": inside,
        "until_s": series,
        "speed": fault.trace is not None,
        "together": not inside and not series and fault.trace is None,
    }
    for key, used in uses.items():
        if not used and key in fault.model_fields_set and getattr(fault, key) != type(fault).model_fields[key].default:
            yield Misfit(key=key, expected="means nothing here: leave it out", also=("at", "do", "target", *TIMES))


def _node(fault: Fault) -> bool:
    return fault.target is Target.NODE and fault.trace is None


def _needs(fault: Fault) -> Iterator[Misfit]:
    """What an action from outside cannot do without."""
    also = ("do", "target", "at", "trace")
    if fault.target is Target.NETWORK and fault.do in ("delay", "rate") and fault.amount is None:
        yield Misfit(key="amount", expected=f"expected amount, of the {fault.do}", also=also, absent=True)
    if fault.target is Target.NODE and fault.trace is None and fault.seconds is None:
        expected = "expected seconds, after which the node is back"
        yield Misfit(key="seconds", expected=expected, also=also, absent=True)
    if fault.do == "stop" and fault.target is Target.LIGHTHOUSE and fault.seconds is None:
        expected = "expected seconds: nobody else wakes a lighthouse"
        yield Misfit(key="seconds", expected=expected, also=also, absent=True)


def _point(fault: Fault) -> Iterator[Misfit]:
    if fault.at in failpoints.NAMES and fault.do in failpoints.ACTIONS:
        expected = _refusal(inside(fault, group="g0", rank=0, step=None))
        if expected is not None:
            yield Misfit(key="at", expected=f"with do = {fault.do!r}: {expected}", also=("do", "part"))


def _refusal(point: Failpoint) -> str | None:
    """What is wrong with a failpoint, if anything is."""
    try:
        failpoints.parse(str(point))
    except ValueError as error:
        return str(error)
    return None
