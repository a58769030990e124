"""Native HSDP, the baseline that is restarted: its ranks in real processes, through a save and a restart."""

from __future__ import annotations

import hashlib
import os

import pytest
from torch.distributed.tensor import DTensor

from configs.dump import to_toml
from configs.load import load
from configs.run_folder import read_events
from ops.bench.native_rank import LOG, PROBES, Native
from ops.bench.plain import KEPT, SAVE_EVERY
from tests.support.ranks import run_ranks

GROUPS = 2


def life(rank, world, config, words, steps, save_every, probes=0):
    """Train ``steps`` steps; the digest of what this rank holds then."""
    os.environ |= {SAVE_EVERY: str(save_every), PROBES: str(probes)}
    native = Native(load(config, words))
    for _ in range(steps):
        native.attempt()
    digest = hashlib.sha256()
    for tensor in native.state.values():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(whole.detach().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture
def config(rig, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(rig.config("native", groups=GROUPS, ranks=1, steps=10)))
    return str(path)


def test_a_restart_goes_on_from_the_last_save(config, tmp_path):
    def lives(name, *plan):
        return [
            run_ranks(life, GROUPS, tmp_path, config, ["--job.dump_folder", str(tmp_path / name)], *one) for one in plan
        ]

    [calm] = lives("calm", (9, 0))
    assert len(set(calm)) == 1, "the groups hold the same weights"
    first, second = lives("saved", (8, 1), (1, 1, 2))
    assert first != second == calm
    assert sorted(path.name for path in (tmp_path / "saved" / "checkpoints").glob("[0-9]*")) == ["7", "8", "9"][:KEPT]
    events = list(read_events(tmp_path / "saved" / "events" / f"{LOG}.jsonl"))
    assert [e["step"] for e in events if e["event"] == "commit"] == list(range(1, 10))
    assert [e["step"] for e in events if e["event"] == "start"] == [0, 8]
    assert [e["save_s"] is None for e in events if e["event"] == "start"] == [True, False]
