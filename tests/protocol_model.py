"""The gateway's side of the step protocol, and the whole model: every event that can happen in a state.

``Model.decide`` and ``Model.grant`` are what lighthouse/decide.py must agree with; a test replays random walks of
``Model.events`` against it. Change the model first when the protocol changes.
"""

from tests.protocol_groups import GroupSide
from tests.protocol_words import (
    ASKED,
    DOWN,
    FAULTS,
    HEALING,
    LEFT,
    POSTED,
    SEATED,
    SUMMARY,
    Gateway,
    Group,
    State,
    View,
    Violation,
    fenced,
    lineage,
    put,
    rename,
    show,
)


class Model(GroupSide):
    """Faults are counted, at most ``faults`` of them in a run; all other events are free."""

    def __init__(self, groups, steps, faults, caps, shared, rules, bugs, cold=True):
        self.n, self.steps, self.shared = groups, steps, shared
        self.rules, self.bugs = frozenset(rules), frozenset(bugs)
        self.first = State(
            groups=(Group(DOWN, 0, (), True, None, None, False, None, False, False, False),) * groups,
            gw=Gateway(True, 0, (0, 0), 0, (1,) * groups, (), (), False, (None,) * groups, None),
            disks=((),) * (1 if shared else groups),
            posted=(),
            zombies=(),
            chain=(),
            maxid=0,
            left=(faults, *(caps.get(f, 0) for f in FAULTS)),
        )
        if not cold:  # every group has started and asked; a start of a part of the groups is not explored
            for g in range(groups):
                self.first = self.start(self.first, g, self.first.groups[g])

    # ---- small pure helpers -----------------------------------------------------------------------------------------
    def disk(self, g):
        return 0 if self.shared else g

    def goal(self, s):
        return s.gw.ended or all(grp.phase == LEFT for grp in s.groups)

    def pay(self, s, fault):
        """The state with one fault fewer to come, or None."""
        i = FAULTS.index(fault) + 1
        if not s.left[0] or not s.left[i]:
            return None
        left = list(s.left)
        left[0] -= 1
        left[i] -= 1
        return s._replace(left=tuple(min(n, left[0]) for n in left))

    def group(self, s, g, **kw):
        s = s._replace(groups=put(s.groups, g, s.groups[g]._replace(**kw)))
        if "phase" in kw and s.posted:  # forget contributions of attempts in which nobody is any more
            live = {grp.view.att for grp in s.groups if grp.phase in (SEATED, HEALING, POSTED)}
            live |= {grp.inbox[0].att for grp in s.groups if grp.inbox}
            s = s._replace(posted=tuple(p for p in s.posted if p[0] in live))
        return s

    def gone(self, s, g):
        """Group g dies or exits: everything in memory is lost. Its request, if any, is still with the gateway."""
        return self.group(
            s,
            g,
            phase=DOWN,
            hist=(),
            void=True,
            view=None,
            inbox=None,
            paused=False,
            save=None,
            drain=False,
            flag=False,
            told=False,
        )

    def publish(self, s, d, hist, buried):
        if hist != s.chain[: len(hist)] and not ("fence" in self.rules and fenced(lineage(hist), s.gw.fences)):
            raise Violation(f"I3: published {show(hist)}, the confirmed chain is {show(s.chain)}")
        if buried and "literal_I3" in self.rules:
            raise Violation(f"I3 (literal): a buried incarnation published {show(hist)}")
        return s if hist in s.disks[d] else s._replace(disks=put(s.disks, d, tuple(sorted(s.disks[d] + (hist,)))))

    # ---- the gateway's decision: a pure function of the requests and of what is stored ------------------------------
    def decide(self, s):
        """(current lineage, up-to-date groups, history to restore or None, rollback?) or None while it must wait."""
        gw = s.gw
        asked = [g for g in range(self.n) if gw.pending[g]]
        if not asked:
            return None
        if "left_out" not in self.bugs:
            for h, inc in gw.known:
                if inc >= gw.floor[h] and not (gw.pending[h] and gw.pending[h][0] == inc):
                    return None  # a former participant that lives is seated or buried, never left out
        claims = {}
        for g in asked:
            _inc, hist, void, _drain = gw.pending[g]
            lin = lineage(hist)
            if (not void or ("half_healed" in self.bugs and hist)) and not (
                "fence" in self.rules and fenced(lin, gw.fences)
            ):
                claims.setdefault(lin, []).append(g)
        restore = None
        chain = (gw.granted, (gw.granted[0] + 1, gw.lastq))
        if claims:  # a living run owns the history; who holds the confirmed chain comes before everybody else
            held = [lin for lin in claims if lin in chain] if "hold_lineage" in self.rules else ()
            current = max(held or claims, key=lambda lin: (lin[0], len(claims[lin]), lin[1]))
            holders = claims[current]
            if "no_lineage" in self.bugs:
                holders = [g for lin in claims if lin[0] == current[0] for g in claims[lin]]
        else:  # nobody current is alive: the newest valid published state among the groups that came
            found = {(): list(asked)}
            for g in asked:
                for hist in filter(None, s.disks[self.disk(g)]):  # scratch is open to all
                    if not ("fence" in self.rules and fenced(lineage(hist), gw.fences)):
                        found.setdefault(hist, []).append(g)
            restore = max(found, key=lambda h: lineage(h))
            current, holders = lineage(restore), found[restore]
        fits = current in chain if "hold_lineage" in self.rules else current[0] >= gw.granted[0]
        return current, sorted(holders), restore, not fits and "silent_rollback" not in self.bugs

    def grant(self, s):
        decision = self.decide(s)
        if decision is None:
            return None
        current, holders, restore, rollback = decision
        gw = s.gw
        asked = [g for g in range(self.n) if gw.pending[g]]
        truth = [restore] if restore is not None else [gw.pending[g][1] for g in holders]
        if restore is None and any(gw.pending[g][2] for g in holders):
            raise Violation(f"I4: a void group counts as up to date at {current}")
        if any(h != truth[0] for h in truth):
            raise Violation("I2: diverged participants: " + ", ".join(show(h) for h in truth))
        hist = truth[0]
        if not rollback and not (hist == s.chain or hist[:-1] == s.chain):
            raise Violation(f"I1: {show(hist)} confirmed without rollback, the confirmed chain is {show(s.chain)}")
        if rollback and any(
            gw.pending[g][1] in (s.chain, s.chain + gw.pending[g][1][-1:])
            and not gw.pending[g][2]
            and gw.pending[g][0] >= gw.floor[g]
            for g in asked
        ):
            raise Violation(f"I1: rolled back to {show(hist)} although one who asks holds {show(s.chain)}")
        if rollback and gw.ended:
            raise Violation(f"I8: a finished run is rolled back to {show(hist)}")
        if (
            restore is not None
            and self.shared
            and any(len(h) > len(restore) and h == s.chain[: len(h)] for h in s.disks[0])
        ):
            raise Violation(f"I8: restored {show(restore)}, a newer confirmed checkpoint is published")

        # drains: one at a time; the last holder stays, the last group saves first
        kind, released = "closing" if current[0] == self.steps else "train", None
        drains = [g for g in asked if gw.pending[g][3]]
        if drains and kind == "train":
            d = drains[0]
            if len(asked) == 1:
                kind = "leave" if d in holders else kind
            elif "holder_stays" not in self.rules or any(h != d for h in holders):
                released = d
        seated = [g for g in asked if g != released]
        members = tuple((g, gw.pending[g][0]) for g in seated)
        att = gw.ctr + 1
        if att <= s.maxid:
            raise Violation(f"I5: quorum id {att} given again or below {s.maxid}")
        same = gw.engine and gw.engine[1] == members and "id_per_grant" not in self.rules and not rollback
        qid = gw.engine[0] if same else att
        floor = list(gw.floor)
        if "supersede" in self.rules:
            for g, inc in members:
                floor[g] = max(floor[g], inc)
        utd = tuple(h for h in holders if h != released)
        view = View(qid, att, members, utd, current, kind, restore)
        groups = list(s.groups)
        for g in asked:
            answer = view._replace(kind="release", restore=None) if g == released else view
            if groups[g].inc == gw.pending[g][0] and groups[g].phase == ASKED:
                groups[g] = groups[g]._replace(inbox=(answer, False))
        fences = (*gw.fences, (current[0], qid)) if rollback and "fence" in self.rules else gw.fences
        gw = gw._replace(
            ctr=att,
            granted=current,
            lastq=qid,
            floor=tuple(floor),
            known=members,
            fences=fences,
            pending=(None,) * self.n,
            engine=(qid, members),
        )
        s = rename(s._replace(gw=gw, groups=tuple(groups), chain=hist, maxid=att))
        note = ", disk" if restore is not None else ""
        note += f", released {released}" if released is not None else ""
        note += ", ROLLBACK LOGGED" if rollback else ""
        return (
            "gateway grants {{{}}}, current {} by {}, {}{}".format(
                ",".join(f"G{g}" for g in seated), current, ",".join(f"G{g}" for g in utd), kind, note
            )
        ), s

    # ---- all events -------------------------------------------------------------------------------------------------
    def events(self, s):
        """Yield (label, is a fault, next state). Raises Violation through the label's event."""
        if s.gw.ended and "end_recorded" in self.rules:
            return
        for g, grp in enumerate(s.groups):
            # The update is local and seen by nobody before the group asks: while one is due, the others can wait.
            # (Pause and death between vote and update are among the group's own events.)
            if grp.phase == SUMMARY and not grp.paused and not self.bugs & {"window_open", "local_loss_discards"}:
                yield from self.group_events(s, g, grp)
                return
        yield from self.gateway_events(s)
        for g, grp in enumerate(s.groups):
            if grp.phase != LEFT:
                yield from self.group_events(s, g, grp)
        for i, (d, hist) in enumerate(s.zombies):
            rest = s._replace(zombies=s.zombies[:i] + s.zombies[i + 1 :])
            yield (
                f"a replaced incarnation wakes and renames {show(hist)}",
                False,
                lambda r=rest, d=d, h=hist: self.publish(r, d, h, True),
            )

    def gateway_events(self, s):
        gw = s.gw
        if not gw.up:

            def restart():
                new = gw._replace(up=True)
                if "buried_volatile" in self.bugs:
                    new = new._replace(floor=(1,) * self.n)
                if "granted_volatile" in self.bugs:
                    new = new._replace(granted=(0, 0), lastq=0)
                if "known_volatile" in self.bugs:
                    new = new._replace(known=())
                if "epoch_volatile" in self.bugs:
                    new = new._replace(ctr=0)
                return s._replace(gw=new)

            yield "gateway restarts", False, restart
            return
        paid = self.pay(s, "crash")
        if paid:

            def crash():
                groups = tuple(grp._replace(inbox=(grp.inbox[0], True)) if grp.inbox else grp for grp in s.groups)
                return paid._replace(groups=groups, gw=gw._replace(up=False, pending=(None,) * self.n, engine=None))

            yield "gateway crashes", True, crash
        known = dict(gw.known)
        for g, grp in enumerate(s.groups):
            # a former participant, or a request, of a dead or silent incarnation: learned late, or by a limit
            incs = {inc for inc in (known.get(g), gw.pending[g] and gw.pending[g][0]) if inc and inc >= gw.floor[g]}
            for inc in sorted(incs):
                if grp.inc != inc or grp.phase in (DOWN, LEFT):
                    yield f"gateway learns that G{g}.{inc} is dead", False, lambda g=g, inc=inc: self.bury(s, g, inc)
                elif grp.paused:
                    yield f"gateway buries the silent G{g}.{inc}", False, lambda g=g, inc=inc: self.bury(s, g, inc)
                else:
                    paid = self.pay(s, "slow")
                    if paid:
                        yield (
                            f"gateway buries the living G{g}.{inc}",
                            True,
                            lambda p=paid, g=g, inc=inc: self.bury(p, g, inc),
                        )
        if self.decide(s):
            yield None, False, lambda: self.grant(s)

    def bury(self, s, g, inc):
        gw = s.gw
        pending = put(gw.pending, g, None) if gw.pending[g] and gw.pending[g][0] <= inc else gw.pending
        s = s._replace(gw=gw._replace(floor=put(gw.floor, g, max(gw.floor[g], inc + 1)), pending=pending))
        if "edge_loss" in self.bugs:
            s = s._replace(
                groups=tuple(
                    grp._replace(told=True)
                    if grp.phase in (SEATED, HEALING, POSTED) and (g, inc) in grp.view.members
                    else grp
                    for grp in s.groups
                )
            )
        return s
