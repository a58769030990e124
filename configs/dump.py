"""A config as TOML: the resolved copy in the run folder. Reading it back gives an equal config."""

from __future__ import annotations

from typing import Any

import tomli_w

from configs.fields import Alias
from configs.keys import leaves, mark, nested, value_of
from configs.schema import Config


def to_toml(config: Config) -> str:
    """Every key with its value, defaults included. None, always a default, is left out: TOML cannot say it."""
    flat = {key: _plain(value_of(config, key)) for key in leaves() if mark(key, Alias) is None}
    return tomli_w.dumps(nested({key: value for key, value in flat.items() if value is not None}))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
