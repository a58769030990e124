"""Can an event be used? A line that parses may still have been damaged: readers rely on the types checked here.

Only what some reader uses is checked, and a field that is not there is no fault. Used by history.py and the verdict:
they name the lines they pass over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from configs.run_folder import Event

Check = Callable[[object], bool]


def fault_of(event: Event) -> str | None:
    """Why an event cannot be used; None where it can."""
    for field, check in _CHECKS.items():
        value = event.get(field)
        if value is not None and not check(value):
            return f"its `{field}` cannot be read"
    return None


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and _finite(value) and value >= 0


def _all(value: object, check: Check) -> bool:
    return isinstance(value, list) and all(check(item) for item in value)


def _table(value: object, check: Check) -> bool:
    return isinstance(value, Mapping) and all(_text(key) and check(item) for key, item in value.items())


_CHECKS: Mapping[str, Check] = {
    "t": lambda value: _finite(value) and isinstance(value, int | float) and abs(value) < 1e12,
    "began_t": _finite,
    **dict.fromkeys(("group", "host", "lineage", "to", "reason", "cause", "outcome", "status", "action"), _text),
    **dict.fromkeys(("digest", "config_digest", "restore", "released", "failpoint"), _text),
    **dict.fromkeys(("incarnation", "step", "attempt", "quorum_id", "epoch"), _whole),
    **dict.fromkeys(("samples", "tokens", "cursor", "bytes", "code"), _whole),
    **dict.fromkeys(("seconds", "waited_s", "recovery_s", "join_stall_s", "stall_seconds"), _seconds),
    **dict.fromkeys(("loss", "grad_norm", "lr"), _number),
    **dict.fromkeys(("participants", "healing", "sources", "groups"), lambda value: _all(value, _text)),
    **dict.fromkeys(("phases", "parts_s"), lambda value: _table(value, _seconds)),
    "shares": lambda value: _table(value, lambda share: _all(share, _whole)),
}
