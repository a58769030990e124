"""decide() gives the protocol model's decisions on random walks of its events; the model itself holds, and can fail."""

import random
from collections import Counter, deque

import pytest

from configs.protocol import Claim, Kind, Terms
from configs.words import Lineage
from lighthouse.decide import Request, Seat, Situation, Wait, decide, moved_on
from lighthouse.state import Fence, Participant, Stored
from tests.protocol_check import SELFTEST, check, successors
from tests.protocol_model import Model
from tests.protocol_words import HEALING, POSTED, RULES, SEATED, lineage

STEPS = 3
KINDS = ("kill", "pause", "crash", "slow", "error", "flag", "drain")


def model(*, groups=2, steps=STEPS, faults=3, kinds=KINDS, shared=True, rules=RULES, bugs=(), cold=True):
    return Model(groups, steps, faults, dict.fromkeys(kinds, faults), shared, rules, bugs, cold)


def named(pair):
    return Participant(f"g{pair[0]}", pair[1])


def claim(walk, state, g):
    inc, hist, void, drain = state.gw.pending[g]
    lin = Lineage(*lineage(hist))
    disk = tuple(Lineage(*lineage(hist)) for hist in state.disks[walk.disk(g)]) if void else ()
    return Claim(group=f"g{g}", incarnation=inc, lineage=lin, void=void, drain=drain, disk=disk)


def stored(gw):
    return Stored(
        running=gw.ctr,
        granted=Lineage(*gw.granted),
        last_quorum_id=gw.lastq,
        floors={f"g{g}": floor for g, floor in enumerate(gw.floor)},
        known=tuple(named(pair) for pair in gw.known),
        fences=tuple(Fence(*fence) for fence in gw.fences),
    )


def situation(walk, state, *, now):
    gw = state.gw
    asked = [g for g in range(walk.n) if gw.pending[g]]
    return Situation(
        requests=tuple(Request(claim=claim(walk, state, g), since=0.0) for g in reversed(asked)),
        stored=stored(gw),
        living=frozenset(map(named, gw.known)),
        terms=Terms(
            run="r",
            config_digest="d",
            groups=walk.n,
            min_groups=1,
            start_wait_s=1,
            failure_detection_s=1,
            steps=walk.steps,
        ),
        engine=tuple(map(named, gw.engine[1])) if gw.engine else None,
        opened=0.0,
        lost=0.0,
        now=now,
    )


def compare(walk, state):
    """The same decision as the model, once no wait with a limit is left; before, at most a wait."""
    late = decide(situation(walk, state, now=10.0))
    early = decide(situation(walk, state, now=0.0))
    assert early == late or isinstance(early, Wait)
    expected = walk.decide(state)
    if expected is None:
        assert isinstance(late, Wait)
        return None
    current, holders, restore, rollback = expected
    assert isinstance(late, Seat)
    assert late.current == current
    assert late.restore == (None if restore is None else lineage(restore))
    assert bool(late.rollback) == rollback
    assert set(late.up_to_date) == {f"g{g}" for g in holders} - {late.released}
    if early == late:
        assert not rollback or all(state.gw.pending)
    return late


def compare_grant(walk, state, seat):
    """What follows from the decision: kind, members, released, and whether the quorum id is a new one."""
    before = state.gw
    _, after = walk.grant(state)
    answers = {g: grp.inbox[0] for g, grp in enumerate(after.groups) if grp.inbox and before.pending[g]}
    views = {g: view for g, view in answers.items() if view.kind != "release"}
    for view in views.values():
        assert seat.kind is Kind(view.kind)
        assert seat.participants == tuple(map(named, view.members))
        assert seat.up_to_date == tuple(f"g{g}" for g in view.current)
        assert seat.new_id == (view.qid == view.att)
    for g in answers.keys() - views.keys():
        assert seat.released == f"g{g}"


def compare_moved_on(walk, state):
    """A request that the model takes for *moved on* is one for decide.py too, and no other."""
    gw = state.gw
    for grp in state.groups:
        if not gw.up or grp.phase not in (SEATED, HEALING, POSTED) or any(i < gw.floor[h] for h, i in grp.view.members):
            continue
        if grp.view.members != gw.known or (grp.view.lineage, grp.view.qid) != (gw.granted, gw.lastq):
            continue  # a paused participant of an older quorum: a loss will tell it
        over = [claim(walk, state, g) for g in range(walk.n) if gw.pending[g]]
        assert walk.lost(state, grp) == any(moved_on(one, stored(gw)) for one in over)


def compare_all(walk, state, seen):
    """Every comparison that makes sense in this state; counts what was seen."""
    if not state.gw.up or state.gw.ended:
        return
    seat = compare(walk, state)
    compare_moved_on(walk, state)
    seen["waits"] += seat is None
    if seat is not None:
        compare_grant(walk, state, seat)
        seen["seats"] += 1
        seen["rollbacks"] += seat.rollback is not None
        seen["drains"] += seat.released is not None or seat.kind is Kind.LEAVE
        seen["heals"] += len(seat.up_to_date) < len(seat.members)


def replay(walk, draw, *, events):
    """Walk at random."""
    state, seen = walk.first, Counter()
    for _ in range(events):
        compare_all(walk, state, seen)
        following = [new for _, _, new in successors(walk, state)]
        if not following:
            break
        state = draw.choice(following)
    return seen


def explore(walk, *, states):
    """Breadth first, up to a number of states."""
    known, queue, seen = {walk.first}, deque([walk.first]), Counter()
    while queue and len(known) < states:
        state = queue.popleft()
        compare_all(walk, state, seen)
        for _, _, new in successors(walk, state):
            if new not in known:
                known.add(new)
                queue.append(new)
    return seen


@pytest.mark.parametrize(("groups", "shared"), [(2, True), (2, False), (3, True), (3, False)])
def test_decisions_equal_the_models_on_random_walks(groups, shared):
    seen = Counter()
    for seed in range(160):
        kinds = KINDS if seed % 2 else ("kill", "drain")
        seen += replay(
            model(groups=groups, shared=shared, faults=8, kinds=kinds),
            random.Random(f"{groups} {shared} {seed}"),
            events=100,
        )
    wanted = {"waits": 100, "seats": 100, "drains": 10, "heals": 10, "rollbacks": 0}
    assert all(seen[name] >= least for name, least in wanted.items()), seen


@pytest.mark.parametrize("kinds", [("kill",), ("kill", "pause", "crash"), ("drain", "error", "slow")])
def test_decisions_equal_the_models_in_every_state_near_the_start(kinds):
    seen = explore(model(steps=2, faults=3, kinds=kinds, shared=False, cold=False), states=12_000)
    assert seen["seats"] > 500
    assert kinds != ("kill",) or seen["rollbacks"] > 10, seen


def test_the_protocol_holds_for_all_interleavings_within_bounds():
    result = check(model(steps=2, faults=1))
    assert result.verdict == "PASS", result.trace
    assert result.exhaustive


@pytest.mark.parametrize(
    ("rule", "faults", "kinds", "shared", "invariant"),
    [("moved_on", 1, ("error",), True, "I7"), ("end_recorded", 1, ("kill",), False, "I8")],
)
def test_the_check_fails_without_a_rule(rule, faults, kinds, shared, invariant):
    rules = set(RULES) - {rule}
    result = check(model(steps=2, faults=faults, kinds=kinds, shared=shared, rules=rules, cold=False))
    assert result.verdict.startswith(invariant)


def test_the_check_fails_with_a_seeded_fault():
    result = check(model(steps=2, faults=1, kinds=("kill",), bugs=("publish_early",), cold=False))
    assert result.verdict.startswith("I3")


@pytest.mark.long
@pytest.mark.parametrize("case", SELFTEST, ids=lambda case: "-".join(filter(None, case[:3])))
def test_the_check_finds_every_seeded_fault_and_every_missing_rule(case):
    bugs, off, on, steps, faults, kinds, shared, invariant = case
    rules = (set(RULES) - set(off.split(","))) | set(filter(None, on.split(",")))
    seeded = model(
        steps=steps,
        faults=faults,
        kinds=kinds.split(","),
        shared=shared,
        rules=rules,
        bugs=set(filter(None, bugs.split(","))),
        cold=False,
    )
    assert check(seeded, seconds=240).verdict.startswith(invariant)


@pytest.mark.long
@pytest.mark.parametrize(
    ("groups", "faults", "kinds"),
    [(2, 2, ("kill", "pause", "crash")), (2, 2, ("kill", "error", "slow", "drain")), (3, 1, KINDS)],
)
def test_the_protocol_holds_within_wider_bounds(groups, faults, kinds):
    result = check(model(groups=groups, steps=2, faults=faults, kinds=kinds), limit=400_000, seconds=240)
    assert result.verdict == "PASS", result.trace
