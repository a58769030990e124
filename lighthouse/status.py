"""What is the lighthouse's state, for people and scripts? The document behind /status.json and Control.Status."""

from __future__ import annotations

from typing import Any

from configs.words import quorum_id_text
from lighthouse.gateway import Gateway
from lighthouse.members import Life
from lighthouse.state import Participant


def status(gateway: Gateway) -> dict[str, Any]:
    """Plain JSON values. ``seconds_*`` count up to now; ``waits_for`` says why there is no next quorum yet."""
    state, last = gateway.state, gateway.quorums.last
    return {
        "run": state.terms.run if state.terms else None,
        "epoch": state.epoch,
        "granted": str(state.granted),
        "ended": None if state.ended is None else str(state.ended),
        "waits_for": gateway.quorums.waits_for,
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
        "groups": [_group(gateway, Participant(*item)) for item in sorted(state.incarnations.items())],
        "fences": [{"step": fence.step, "quorum": quorum_id_text(fence.quorum_id)} for fence in state.fences],
    }


def _group(gateway: Gateway, who: Participant) -> dict[str, Any]:
    life, age = gateway.lives.get(who, Life(who=who)), gateway.ages().get(who.group)
    return {
        "group": who.group,
        "incarnation": who.incarnation,
        "alive": who in gateway.living,
        "buried": gateway.state.buried(who),
        "asks": who in gateway.quorums.waiting.asking,
        "complete": any(who == request.who for request in gateway.quorums.waiting.complete(gateway.living)),
        "phase": life.phase,
        "attempt": life.attempt,
        "step": life.step,
        "tokens": life.tokens,
        "host": life.host,
        "pid": life.pid,
        "ranks": list(life.ranks),
        "seconds_silent": age,
    }
