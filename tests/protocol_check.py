"""Explores the step protocol: breadth first over all interleavings of its events, with the shortest counterexample.

python -m tests.protocol_check --groups 2                  all invariants, prints PASS or the shortest counterexample
python -m tests.protocol_check --groups 2 --without fence  a rule switched off
python -m tests.protocol_check --groups 2 --bug edge_loss  a seeded fault, to see that the check can fail
python -m tests.protocol_check --selftest                  every rule off and every bug on, one after the other
"""

import argparse
import sys
import time
from array import array
from collections import deque, namedtuple

from tests.protocol_model import Model
from tests.protocol_words import BUGS, FAULTS, OPTIONS, RULES, Violation

Result = namedtuple("Result", "verdict trace states edges depth seconds exhaustive")


def successors(model, s):
    for label, fault, make in model.events(s):
        try:
            new = make()
        except Violation as v:
            yield label or "gateway grants", fault, v
            continue
        if label is None:
            label, new = new
        yield label, fault, new


def trace_to(model, parent, nth, i):
    path = []
    while i:
        path.append(nth[i])
        i = parent[i]
    s, labels = model.first, []
    for n in reversed(path):
        for k, (label, _, new) in enumerate(successors(model, s)):
            if k == n:
                labels.append(label)
                s = new
                break
    return labels


def check(model, limit=0, seconds=0, exact=False, progress=None):
    t0 = time.time()
    key = (lambda s: s) if exact else hash
    index = {key(model.first): 0}
    parent, nth, depth = array("i", [0]), array("H", [0]), array("H", [0])
    src, dst, goal = array("i"), array("i"), bytearray([0])
    queue, edges, exhaustive = deque([(0, model.first)]), 0, True
    while queue:
        i, s = queue.popleft()
        for k, (label, fault, new) in enumerate(successors(model, s)):
            edges += 1
            if isinstance(new, Violation):
                labels = [*trace_to(model, parent, nth, i), label]
                return Result(str(new), labels, len(parent), edges, len(labels), time.time() - t0, False)
            h = key(new)
            j = index.get(h)
            if j is None:
                j = index[h] = len(parent)
                parent.append(i)
                nth.append(k)
                depth.append(depth[i] + 1)
                goal.append(model.goal(new))
                queue.append((j, new))
            if not fault:
                src.append(i)
                dst.append(j)
        if (limit and len(parent) > limit) or (seconds and time.time() - t0 > seconds):
            exhaustive = False
            break
        if progress and i % progress == 0 and i:
            print(f"  {i} expanded, {len(parent)} states, depth {depth[i]}, {time.time() - t0:.0f} s", flush=True)
    deepest = depth[-1]
    if exhaustive:  # I7: which states reach a goal through free events only
        n = len(parent)
        start = array("i", bytes(4 * (n + 1)))
        for j in dst:
            start[j + 1] += 1
        for j in range(n):
            start[j + 1] += start[j]
        fill, back = array("i", start), array("i", bytes(4 * len(src)))
        for a, b in zip(src, dst, strict=True):
            back[fill[b]] = a
            fill[b] += 1
        good, stack = bytearray(goal), [j for j in range(n) if goal[j]]
        while stack:
            j = stack.pop()
            for e in range(start[j], start[j + 1]):
                a = back[e]
                if not good[a]:
                    good[a] = 1
                    stack.append(a)
        bad = good.find(0)
        if bad >= 0:
            labels = trace_to(model, parent, nth, bad)
            return Result(
                "I7: from here the run cannot end, though faults stop",
                labels,
                n,
                edges,
                len(labels),
                time.time() - t0,
                True,
            )
    return Result("PASS", [], len(parent), edges, deepest, time.time() - t0, exhaustive)


def report(name, r):
    how = "exhaustive" if r.exhaustive else "stopped early"
    print(
        f"{name}: {'PASS' if r.verdict == 'PASS' else 'FAIL ' + r.verdict}  "
        f"[{r.states} states, {r.edges} transitions, depth {r.depth}, {r.seconds:.1f} s, {how}]"
    )
    for i, label in enumerate(r.trace, 1):
        print(f"  {i:3d}  {label}")
    sys.stdout.flush()


SELFTEST = [  # (bugs, rules off, options on, steps, faults, kinds, shared disks, invariant that must fail)
    ("publish_early", "", "", 2, 1, "kill", True, "I3"),
    ("edge_loss", "", "", 2, 2, "kill,pause,crash,slow,error", True, "I7"),
    ("half_healed", "", "", 3, 2, "kill,error", True, "I4"),
    ("window_open", "", "", 2, 2, "kill,error", True, "I4"),
    ("commit_on_error", "", "", 2, 2, "slow", True, "I6"),
    ("stale_plan", "", "", 2, 2, "kill,error", True, "I9"),
    ("left_out", "", "", 2, 2, "kill,pause,crash,slow,error", True, "I1"),
    ("silent_rollback", "", "", 2, 2, "kill", True, "I1"),
    ("epoch_volatile", "", "", 2, 1, "crash", True, "I5"),
    ("granted_volatile", "", "", 2, 3, "kill,crash,error", True, "I1"),
    ("buried_volatile", "", "", 2, 3, "kill,pause,crash", True, "I1"),
    ("no_lineage,buried_volatile", "", "", 2, 2, "pause,crash", True, "I2"),
    ("no_lineage,left_out", "", "", 2, 2, "pause,error", True, "I1"),
    ("no_lineage,known_volatile", "", "", 2, 2, "pause,crash,error", True, "I2"),
    ("joiner_disk", "", "", 2, 3, "kill", False, "I1"),
    ("", "fence", "", 2, 3, "kill,pause", True, "I3"),
    ("", "fence,hold_lineage", "", 2, 3, "kill", False, "I1"),
    ("", "moved_on", "", 2, 1, "error", True, "I7"),
    ("", "end_recorded", "", 2, 1, "kill", False, "I8"),
    ("", "", "literal_I3", 2, 1, "pause", True, "I3"),
]


def selftest():
    missed = 0
    for bugs, off, on, steps, faults, kinds, shared, want in SELFTEST:
        bugs, off, on = (set(x.split(",")) - {""} for x in (bugs, off, on))
        r = check(
            Model(
                2, steps, faults, dict.fromkeys(kinds.split(","), faults), shared, (set(RULES) - off) | on, bugs, False
            ),
            seconds=120,
        )
        name = " ".join(sorted(bugs) + ["without " + x for x in sorted(off)] + ["with " + x for x in sorted(on)])
        ok = r.verdict.startswith(want)
        missed += not ok
        print(f"{'caught' if ok else 'MISSED'}  {name}: {r.verdict} [{r.states} states, depth {r.depth}]", flush=True)
    return missed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--groups", type=int, default=2)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--faults", type=int, default=2, help="faults per run, all kinds together")
    p.add_argument("--kinds", default=",".join(FAULTS), help="kinds of faults, kind or kind:most")
    p.add_argument("--disks", choices=("shared", "unshared"), default="shared")
    p.add_argument("--selftest", action="store_true", help="seeded bugs and rules off, each must be caught")
    p.add_argument("--start", choices=("cold", "asked"), default="cold", help="asked: all groups have asked")
    p.add_argument("--without", default="", help="rules off: " + ", ".join(RULES))
    p.add_argument("--with", dest="with_", default="", help="options on: " + ", ".join(OPTIONS))
    p.add_argument("--bug", default="", help="seeded bugs: " + ", ".join(BUGS))
    p.add_argument("--limit", type=int, default=0, help="stop after so many states")
    p.add_argument("--seconds", type=float, default=0, help="stop after so many seconds")
    p.add_argument("--exact", action="store_true", help="keep whole states instead of 64-bit hashes")
    p.add_argument("--progress", type=int, default=0)
    a = p.parse_args()
    if a.selftest:
        return 1 if selftest() else 0
    off, on, bugs = (set(x.split(",")) - {""} for x in (a.without, a.with_, a.bug))
    for names, legal in ((off, RULES), (on, OPTIONS), (bugs, BUGS)):
        if names - set(legal):
            p.error(f"unknown: {', '.join(sorted(names - set(legal)))}")
    caps = {}
    for kind in a.kinds.split(","):
        name, _, most = kind.partition(":")
        caps[name] = int(most) if most else a.faults
    model = Model(
        a.groups, a.steps, a.faults, caps, a.disks == "shared", (set(RULES) - off) | on, bugs, a.start == "cold"
    )
    r = check(model, a.limit, a.seconds, a.exact, a.progress)
    report(f"groups {a.groups}, steps {a.steps}, faults {a.faults}, {a.disks} disks", r)
    return 0 if r.verdict == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
