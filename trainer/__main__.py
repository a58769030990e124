"""``torchrun ... -m trainer --job.config_file CONFIG.toml [--section.key value ...]``: one rank, placed by torchrun."""

from __future__ import annotations

import os
import sys

from configs.load import ConfigError, load, split_config_file
from configs.words import Exit
from replica_groups.identity import place_from_environment
from trainer.main import run_rank


def main() -> int:
    """Run this rank. Exit 2 with every problem for a bad config or environment."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"{__doc__}\n\n`phalanx launch --help` tells where the keys are listed.")
        return int(Exit.DONE)
    try:
        source, overrides = split_config_file(sys.argv[1:])
        if source is None:
            raise ValueError("--job.config_file CONFIG.toml is missing")
        config = load(source, overrides)
        place = place_from_environment(os.environ)
    except (ConfigError, ValueError) as error:
        print(error, file=sys.stderr)
        return int(Exit.BAD_CONFIG)
    return run_rank(config, place)


if __name__ == "__main__":
    raise SystemExit(main())
