"""The groups' side of the step protocol: what one group can do, and what can happen to it, in each phase."""

from tests.protocol_words import (
    ASKED,
    DOWN,
    HEALING,
    IDLE,
    LEFT,
    POSTED,
    SEATED,
    SUMMARY,
    M,
    Violation,
    fail,
    lineage,
    plan,
    put,
    show,
)


class GroupSide:
    """The events of one group; mixed into ``protocol_model.Model``."""

    def lost(self, s, grp):
        """Level-triggered: may the group hear, now, that its attempt is over? (loss, or a fellow that has moved on)"""
        gw = s.gw
        if not gw.up:
            return False
        if "edge_loss" in self.bugs:
            if grp.told:
                return True
        elif any(inc < gw.floor[h] for h, inc in grp.view.members):
            return True
        if "moved_on" in self.rules:
            mine = (grp.view.lineage[0] + 1, grp.view.qid)
            for h, inc in grp.view.members:
                p = gw.pending[h]
                if p and p[0] == inc and (p[2] or lineage(p[1]) != mine):
                    return True
        return False

    def sources(self, s, view):
        """Up-to-date participants that still stand in this attempt with their window open."""
        open_ = (SEATED, POSTED, SUMMARY, IDLE, ASKED) if "window_open" in self.bugs else (SEATED, POSTED)
        for h, inc in view.members:
            grp = s.groups[h]
            here = (grp.view and grp.view.att == view.att) or "window_open" in self.bugs
            if here and h in view.current and grp.inc == inc and grp.phase in open_ and not grp.paused and not grp.void:
                yield h, grp

    def group_events(self, s, g, grp):
        gw, me = s.gw, f"G{g}.{grp.inc}"
        buried = grp.inc < gw.floor[g]
        if grp.phase == DOWN:
            if gw.up:
                yield f"G{g}.{grp.inc + 1} starts, rehearses and asks (void)", False, lambda: self.start(s, g, grp)
            return
        if grp.paused:
            yield f"{me} wakes", False, lambda: self.group(s, g, paused=False)
            if buried:

                def replaced():
                    z, save = s.zombies, grp.save
                    confirmed = save and (save[1] or (grp.inbox and g in grp.inbox[0].current and save[0] == grp.hist))
                    if confirmed and (self.disk(g), save[0]) not in z:
                        z = tuple(sorted((*z, (self.disk(g), save[0]))))
                    return self.gone(s._replace(zombies=z), g)

                yield f"the paused {me} is replaced elsewhere (it may wake later)", False, replaced
            return
        paid = self.pay(s, "kill")
        if paid:
            yield f"{me} is killed", True, lambda: self.gone(paid, g)
        paid = self.pay(s, "pause")
        if paid:
            yield f"{me} is paused", True, lambda p=paid: self.group(p, g, paused=True)
        paid = self.pay(s, "drain")
        if paid and not grp.drain:
            yield f"{me} gets a notice to drain", True, lambda p=paid: self.group(p, g, drain=True)
        if gw.up and buried:
            yield f"{me} hears that it is buried, exits 7", False, lambda: self.gone(s, g)
        if grp.save and (grp.save[1] or "publish_early" in self.bugs):
            yield (
                f"{me} publishes {show(grp.save[0])}",
                False,
                lambda: self.publish(self.group(s, g, save=None), self.disk(g), grp.save[0], buried),
            )
        if grp.phase == IDLE:
            if gw.up and not buried:
                yield f"{me} asks with {'void' if grp.void else lineage(grp.hist)}", False, lambda: self.ask(s, g)
        elif grp.phase == ASKED:
            if grp.inbox:
                yield f"{me} receives its answer", False, lambda: self.seat(s, g, grp)
            if gw.up and not buried and not gw.pending[g] and (not grp.inbox or grp.inbox[1]):
                yield f"{me} asks again (answer lost)", False, lambda: self.ask(s, g)
        elif grp.phase == SUMMARY:
            yield f"{me} updates", False, lambda: self.update(s, g, grp)
            if "local_loss_discards" in self.bugs and self.lost(s, grp):
                yield f"{me} discards after its vote", False, lambda: self.group(s, g, phase=IDLE, view=None)
        elif grp.view.kind in ("closing", "leave"):
            yield from self.closing_events(s, g, grp)
        else:
            yield from self.attempt_events(s, g, grp)

    def start(self, s, g, grp):
        s = self.group(s, g, phase=IDLE, inc=grp.inc + 1, hist=(), void=True)
        own = s.disks[self.disk(g)]
        if "joiner_disk" in self.bugs and own:
            s = self.group(s, g, hist=max(own, key=lineage), void=False)
        return self.ask(s, g)

    def ask(self, s, g):
        grp = s.groups[g]
        s = self.group(s, g, phase=ASKED, inbox=None, view=None, told=False)
        return s._replace(gw=s.gw._replace(pending=put(s.gw.pending, g, (grp.inc, grp.hist, grp.void, grp.drain))))

    def seat(self, s, g, grp):
        view = grp.inbox[0]
        if view.kind == "release":
            if grp.save and g in view.current and grp.save[0] == grp.hist:
                s = self.publish(s, self.disk(g), grp.hist, False)
            return self.group(s, g, phase=LEFT, hist=(), void=True, view=None, inbox=None, save=None, drain=False)
        if g in view.current:
            save = grp.save
            if view.restore is not None:
                return self.group(
                    s,
                    g,
                    phase=SEATED,
                    hist=view.restore,
                    void=False,
                    inbox=None,
                    save=None,
                    view=view._replace(restore=None),
                )
            if save and save[0] == grp.hist:
                save = (save[0], True)  # seated with this lineage: the commit is confirmed
            return self.group(s, g, phase=SEATED, view=view, inbox=None, save=save)
        save = grp.save if grp.save and grp.save[1] else None  # an unconfirmed save is orphaned
        phase = (
            HEALING if grp.void and view.kind == "train" and "window_open" not in self.bugs else SEATED
        )  # a void group has nothing to lose
        return self.group(s, g, phase=phase, view=view._replace(restore=None), inbox=None, save=save)

    def update(self, s, g, grp):
        view = grp.view
        if view.lineage[0] != len(grp.hist):
            raise Violation(f"I9: a group at step {len(grp.hist)} commits in an attempt at step {view.lineage[0]}")
        hist = (*grp.hist, (len(grp.hist) + 1, view.qid, view.att, grp.flag))
        r = [h for h, _ in view.members].index(g)
        save = grp.save
        if save is None and len(hist) % len(view.members) == r and len(hist) < self.steps:
            save = (hist, False)  # written in the background now, renamed once confirmed
        return self.group(s, g, phase=IDLE, hist=hist, view=None, save=save, flag=False, told=False)

    def attempt_events(self, s, g, grp):
        me, view = f"G{g}.{grp.inc}", grp.view
        healing = g not in view.current

        def post(s, share, flag, **kw):
            if grp.void and share:
                raise Violation("I4: a void group computes a share")
            return self.group(s._replace(posted=tuple(sorted((*s.posted, (view.att, g, share, flag))))), g, **kw)

        if grp.phase == SEATED and not healing:
            share = plan(len(grp.hist), view.current, g)
            yield f"{me} computes and posts {share}", False, lambda: post(s, share, False, phase=POSTED)
            paid = self.pay(s, "flag")
            if paid and share:
                yield (
                    f"{me} computes, flags non-finite, posts {share}",
                    True,
                    lambda p=paid: post(p, share, True, phase=POSTED),
                )
        elif grp.phase == SEATED and any(self.sources(s, view)):

            def begin():
                new = self.group(s, g, phase=HEALING, void=True, save=grp.save)
                if "window_open" in self.bugs:
                    new = new._replace(posted=tuple(sorted((*new.posted, (view.att, g, (), False)))))
                return new

            yield f"{me} receives the first byte: void", False, begin
        elif grp.phase == HEALING:
            for h, src in self.sources(s, view):
                if lineage(src.hist) != view.lineage and "window_open" in self.bugs:
                    yield (
                        f"{me} heals from G{h} while it changes",
                        False,
                        lambda: fail("I4: the healed state mixes two states of its source"),
                    )
                    continue
                old = len(grp.hist)

                def done(src=src, old=old):
                    share = (
                        plan(old, view.current, g)
                        if "stale_plan" not in self.bugs
                        else plan(old, (*view.current, g), g)
                    )
                    new = (
                        s
                        if "window_open" in self.bugs
                        else s._replace(posted=tuple(sorted((*s.posted, (view.att, g, share, False)))))
                    )
                    return self.group(new, g, phase=POSTED, hist=src.hist, void=False)

                yield f"{me} is healed by G{h}, posts zeros", False, done
                break
        elif grp.phase == POSTED:
            got = {p[1]: p for p in s.posted if p[0] == view.att}
            if all(h in got for h, _ in view.members):
                yield f"{me} holds the summary", False, lambda: self.summary(s, g, grp, got)
            elif "commit_on_error" in self.bugs and self.lost(s, grp):
                yield f"{me} takes the failed collective for complete", False, lambda: self.summary(s, g, grp, got)
        if self.lost(s, grp):
            yield f"{me} hears that the attempt is over, discards", False, lambda: self.discard(s, g)
        elif grp.phase == HEALING and not any(
            s.groups[h].inc == inc
            and s.groups[h].view
            and s.groups[h].view.att == view.att
            and s.groups[h].phase in (SEATED, POSTED)
            for h, inc in view.members
            if h in view.current
        ):
            yield f"{me} has no source left, discards void", False, lambda: self.discard(s, g)
        else:
            paid = self.pay(s, "error")
            if paid:
                yield f"{me} has an error in a collective, discards", True, lambda p=paid: self.discard(p, g)

    def discard(self, s, g):
        return self.group(s, g, phase=IDLE, view=None, told=False)

    def summary(self, s, g, grp, got):
        view = grp.view
        if not all(h in got for h, _ in view.members):
            raise Violation("I6: a commit without the contribution of every participant")
        done = sorted(m for p in got.values() for m in p[2])
        if done != [view.lineage[0] * M + i for i in range(M)]:
            raise Violation(f"I9: step {view.lineage[0]} counts the microbatches {done}")
        flag = any(p[3] for p in got.values())  # the outcome, skipped or updated, is in the summary
        return self.group(s, g, phase=SUMMARY, flag=flag)

    def closing_events(self, s, g, grp):
        """The last step (or the last group's drain): nobody heals; the first holder publishes and reports the end."""
        gw, me, view = s.gw, f"G{g}.{grp.inc}", grp.view
        if g == view.current[0]:
            if grp.hist not in s.disks[self.disk(g)]:
                yield (
                    f"{me} publishes the last state {show(grp.hist)}",
                    False,
                    lambda: self.publish(s, self.disk(g), grp.hist, grp.inc < gw.floor[g]),
                )
            elif gw.up and not grp.inc < gw.floor[g]:

                def end():
                    if view.kind == "leave":
                        return self.group(
                            s._replace(gw=gw._replace(known=())),
                            g,
                            phase=LEFT,
                            hist=(),
                            void=True,
                            view=None,
                            save=None,
                            drain=False,
                        )
                    if "end_recorded" in self.rules:
                        return s._replace(gw=gw._replace(ended=True))
                    new = s._replace(gw=gw._replace(ended=True, known=()))  # ended is only a ghost in this reading
                    for h, inc in view.members:
                        if new.groups[h].inc == inc and new.groups[h].view and new.groups[h].view.att == view.att:
                            new = self.gone(new, h)
                            new = self.group(new, h, phase=LEFT)
                    return new

                yield f"{me} reports the last state saved, leaves", False, end
        if self.lost(s, grp):
            yield f"{me} hears that the quorum is over", False, lambda: self.discard(s, g)
