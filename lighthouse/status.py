"""What is the lighthouse's state, for people and scripts? The document behind /status.json and Control.Status."""

from __future__ import annotations

from typing import Any

from configs.words import quorum_id_text
from lighthouse.gateway import Gateway
from lighthouse.members import Life
from lighthouse.state import Participant


def status(gateway: Gateway) -> dict[str, Any]:
    """Plain JSON values. ``seconds_*`` count up to now; ``waits_for`` says why there is no next quorum yet, and
    ``seconds_waited`` for how long the first of those who ask has waited."""
    state, last = gateway.state, gateway.quorums.last
    return {
        "run": state.terms.run if state.terms else None,
        "epoch": state.epoch,
        "granted": str(state.granted),
        "ended": None if state.ended is None else str(state.ended),
        "steps": state.terms.steps if state.terms else None,
        "groups_configured": state.terms.groups if state.terms else None,
        "waits_for": gateway.quorums.waits_for,
        "seconds_waited": gateway.quorums.seconds_waited(),
        "quorum": None
        if last is None
        else {
            "step": last.current.step,
            "attempt": last.attempt,
            "quorum_id": last.quorum_id,
            "quorum": quorum_id_text(last.quorum_id),
            "kind": last.kind.value,
            "participants": list(last.names),
            "healing": list(last.healing),
            "reason": last.reason,
            "over": last.attempt == gateway.quorums.over,
        },
        "groups": _groups(gateway),
        "fences": [{"step": fence.step, "quorum": quorum_id_text(fence.quorum_id)} for fence in state.fences],
    }


def _groups(gateway: Gateway) -> list[dict[str, Any]]:
    """A row for the newest incarnation of each group. What is the same for all is looked up once."""
    living, ages, waiting = gateway.living, gateway.ages(), gateway.quorums.waiting
    asking, complete = set(waiting.asking), {request.who for request in waiting.complete(living)}
    rows = []
    for who in (Participant(*item) for item in sorted(gateway.state.incarnations.items())):
        life = gateway.lives.get(who, Life(who=who))
        rows.append(
            {
                "group": who.group,
                "incarnation": who.incarnation,
                "alive": who in living,
                "buried": gateway.state.buried(who),
                "asks": who in asking,
                "complete": who in complete,
                "phase": life.phase,
                "seconds_in_phase": gateway.seconds_since(life.since),
                "attempt": life.attempt,
                "step": life.step,
                "tokens": life.tokens,
                "host": life.host,
                "pid": life.pid,
                "ranks": list(life.ranks),
                "seconds_silent": ages.get(who.group),
            }
        )
    return rows
