"""The step protocol's words, states and invariants: the vocabulary of the executable specification.

protocol_model.py holds the gateway's side and protocol_groups.py the groups'; protocol_check.py explores them. Names
are those of the design: group, incarnation, participant, attempt, lineage, share, void, heal, restore, drain, bury. A
group is one atomic unit here (its ranks have agreed). The content of a state is abstracted by its *history*, the tuple
of commits that made it; a commit is (step, quorum id, attempt, outcome). The protocol sees only the lineage, which is
(step, quorum id) of the last commit; the checker sees the whole history, and so finds equal lineages of unequal states.

  I1  the confirmed commits form one chain, cut back only by a logged rollback, and only when nobody who asks holds it
  I2  up-to-date participants of one quorum have identical histories
  I3  what is published, and a reader would accept, is a prefix of the confirmed chain at that moment
  I4  a void group computes no share, serves nobody, is never up to date; a healed group holds what its source held
  I5  quorum ids strictly increase, over restarts of the gateway too
  I6  a group applies a commit only if every participant contributed everything
  I7  from every reachable state, if faults stop, the end of the run (or of the last drained group) can be reached
  I8  a resume from disk takes the newest valid checkpoint that came; going below a granted step is logged
  I9  the shares of a committed attempt are the microbatches of its step, each exactly once
import argparse
import sys
"""

from collections import namedtuple

# Phases of a group. Rehearsal is part of the start: an incarnation is visible only once it asks.
DOWN, IDLE, ASKED, SEATED, HEALING, POSTED, SUMMARY, LEFT = range(8)
M = 2  # microbatches of a step

# hist: history (with void: the claim of a state that must not be used); inbox: an answer on its way (view, broken),
# broken when the gateway died after sending it; save: (history, confirmed) of the background save; told: for edge_loss.
Group = namedtuple("Group", "phase inc hist void view inbox paused save drain flag told")
# What an answer says. kind: train | closing (last step) | release (drain granted) | leave (drain of the last group).
# restore: the history to take from disk first, or None.
View = namedtuple("View", "qid att members current lineage kind restore")
# Durable: ctr (epoch and running number as one integer), granted (lineage), lastq, floor (incarnations below it are
# buried), known (participants of the last quorum), fences (logged rollbacks), ended. Volatile: up, pending, engine.
Gateway = namedtuple("Gateway", "up ctr granted lastq floor known fences ended pending engine")
# chain, maxid: ghosts of the checker. zombies: renames a replaced, paused incarnation can still do. left: faults left.
State = namedtuple("State", "groups gw disks posted zombies chain maxid left")

RULES = {  # needed, or proposed, beyond the letter of the design; all on unless --without
    "fence": "a logged rollback to step r at quorum id Q makes every lineage (t > r, q < Q) invalid for ever",
    "moved_on": "a fellow's request that does not show this attempt's commit ends the attempt, like a loss",
    "hold_lineage": "only the granted lineage, or the commit of the last quorum on top of it, passes without rollback",
    "end_recorded": "the end is recorded once the last step is published; whoever comes later exits 0",
    "holder_stays": "a drain is granted only when another participant holds the current lineage",
    "supersede": "a new incarnation that asks buries its predecessors, durably, before it is seated",
}
OPTIONS = {  # other readings, off unless --with
    "id_per_grant": "a fresh quorum id for each granted quorum instead of one for each membership",
    "literal_I3": "nothing at all may be renamed by a buried incarnation (not only: nothing acceptable)",
}
BUGS = {
    "no_lineage": "equal step counts as equal state",
    "publish_early": "checkpoints are published before their step is confirmed",
    "edge_loss": "loss is told once, only to those who are in the attempt at that moment",
    "buried_volatile": "the buried set does not survive a restart of the gateway",
    "granted_volatile": "the granted lineage does not survive a restart of the gateway",
    "known_volatile": "the participants of the last quorum do not survive a restart of the gateway",
    "epoch_volatile": "the epoch does not survive a restart of the gateway",
    "joiner_disk": "a joiner brings its own disk state to a living run",
    "left_out": "a quorum may form without a living former participant",
    "half_healed": "a void group asks with the lineage it had before the transfer",
    "window_open": "a healer joins the reduction at once and its source serves on while it commits",
    "commit_on_error": "a failed collective is taken for a complete one",
    "silent_rollback": "a quorum below the granted step is neither held nor logged",
    "stale_plan": "a group that healed plans with the step it had before",
    "local_loss_discards": "a group that holds the summary still discards on a loss, after having voted",
}
FAULTS = ("kill", "pause", "crash", "slow", "error", "flag", "drain")


class Violation(Exception):
    pass


def lineage(hist):
    return (hist[-1][0], hist[-1][1]) if hist else (0, 0)


def fenced(lin, fences):
    return any(lin[0] > step and lin[1] < qid for step, qid in fences)


def put(seq, i, value):
    return (*seq[:i], value, *seq[i + 1 :])


def plan(step, current, g):
    """Share of group g: a pure function of the step and the up-to-date participants."""
    if g not in current:
        return ()
    r, k = current.index(g), len(current)
    return tuple(step * M + i for i in range(M) if i % k == r)


def fail(text):
    raise Violation(text)


def rename(s):
    """Ids matter by order only: number them anew, so that equal situations become equal states."""
    gw, ids = s.gw, {0, s.gw.ctr, s.gw.granted[1], s.gw.lastq, s.maxid}
    hists = [s.chain] + [h for d in s.disks for h in d] + [h for _, h in s.zombies] + [p[1] for p in gw.pending if p]
    views = []
    for grp in s.groups:
        hists.append(grp.hist)
        if grp.save:
            hists.append(grp.save[0])
        views += [v for v in (grp.view, grp.inbox and grp.inbox[0]) if v]
    for v in views:
        ids |= {v.qid, v.att, v.lineage[1]}
        if v.restore is not None:
            hists.append(v.restore)
    for h in hists:
        for c in h:
            ids.add(c[1])
            ids.add(c[2])
    ids |= {q for _, q in gw.fences} | {p[0] for p in s.posted}
    if gw.engine:
        ids.add(gw.engine[0])
    order = sorted(ids)
    if order[-1] == len(order) - 1:
        return s
    m = {old: new for new, old in enumerate(order)}

    def hist(h):
        return tuple((a, m[q], m[t], f) for a, q, t, f in h)

    def view(v):
        return v and v._replace(
            qid=m[v.qid],
            att=m[v.att],
            lineage=(v.lineage[0], m[v.lineage[1]]),
            restore=None if v.restore is None else hist(v.restore),
        )

    groups = tuple(
        grp._replace(
            hist=hist(grp.hist),
            view=view(grp.view),
            inbox=grp.inbox and (view(grp.inbox[0]), grp.inbox[1]),
            save=grp.save and (hist(grp.save[0]), grp.save[1]),
        )
        for grp in s.groups
    )
    gw = gw._replace(
        ctr=m[gw.ctr],
        granted=(gw.granted[0], m[gw.granted[1]]),
        lastq=m[gw.lastq],
        fences=tuple((a, m[q]) for a, q in gw.fences),
        engine=gw.engine and (m[gw.engine[0]], gw.engine[1]),
        pending=tuple(p and (p[0], hist(p[1]), p[2], p[3]) for p in gw.pending),
    )
    return s._replace(
        groups=groups,
        gw=gw,
        disks=tuple(tuple(hist(h) for h in d) for d in s.disks),
        posted=tuple((m[p[0]], *p[1:]) for p in s.posted),
        zombies=tuple((d, hist(h)) for d, h in s.zombies),
        chain=hist(s.chain),
        maxid=m[s.maxid],
    )


def show(hist):
    return "<" + " ".join(f"{c[0]}@q{c[1]}{'s' if c[3] else ''}" for c in hist) + ">"
