"""Other promises of a run, each with real processes and real kills: fp32 and per-group batches, whole-run loss, slow
and dying healers, hot spares, finite data, non-finite gradients."""

from __future__ import annotations

import pytest
import torch

from checkpointing.tools import to_torch
from configs.words import Exit
from tests.support.data import write_corpus
from tests.support.rig import holds

KILLS = ["g1:backward@8#1:kill", "g0:reduce@22#0:kill", "g1:vote_after@36#0:kill"]
STEPS = 60


def final_parameters(run, tmp_path):
    folder = run.folder.root / "checkpoints" / run.chain[-1].folder
    out = tmp_path / f"{run.folder.root.name}.pt"
    to_torch(folder, out)
    return torch.load(out, weights_only=True)["model"]


def test_fp32_reduction_stays_within_rounding(rig, tmp_path):
    """Sums of another order: parameters to 1e-5 (relative L2 over all), losses to 1e-4 after 60 steps."""
    alone = rig.run("fp32-alone", groups=1, steps=STEPS, fault_tolerance__reduction="fp32")
    killed = rig.run("fp32-killed", steps=STEPS, fault_tolerance__reduction="fp32", chaos__failpoints=KILLS)
    assert (alone.code, killed.code) == (Exit.DONE, Exit.DONE), killed.said
    assert sorted(killed.kills()) == sorted(f"{kill}" for kill in KILLS)
    holds(killed, steps=STEPS)
    killed.series("digest")  # equal between groups after every confirmed step
    mine, theirs = alone.series("loss"), killed.series("loss")
    assert max(abs(mine[step] - theirs[step]) for step in mine) <= 1e-4
    a, b = final_parameters(alone, tmp_path), final_parameters(killed, tmp_path)
    difference = sum(float((a[name] - b[name]).double().square().sum()) for name in a)
    size = sum(float(a[name].double().square().sum()) for name in a)
    assert (difference / size) ** 0.5 <= 1e-5


def test_per_group_batches_shrink_with_the_quorum_and_nothing_is_lost(rig):
    run = rig.run(
        "per-group",
        steps=STEPS,
        training__global_batch_size=12,
        fault_tolerance__batch="per_group",
        fault_tolerance__reduction="fp32",
        chaos__failpoints=KILLS,
    )
    assert run.code == Exit.DONE, run.said
    holds(run, steps=STEPS)
    run.series("digest")
    samples = set(run.series("samples").values())
    assert samples == {6, 12}, samples


def test_a_replacement_that_builds_for_twelve_seconds_costs_the_survivor_nothing(rig):
    run = rig.run(
        "slow-build",
        steps=160,
        chaos__failpoints=["g1:build:delay=0", "g1:backward@8:kill", "g1:build:delay=12"],
    )
    assert run.code == Exit.DONE, run.said
    slow = next(e for e in run.events("g1", "fault") if e["failpoint"].endswith("delay=12"))
    meanwhile = [e for e in run.events("g0", "commit") if slow["t"] <= e["t"] <= slow["t"] + 12]
    assert len(meanwhile) >= 20
    assert all(e["participants"] == ["g0"] for e in meanwhile)
    assert len(run.events("g0", "discard")) == 1, "only the attempt in which its peer died"
    holds(run, steps=160)


def test_a_healer_that_dies_in_the_middle_costs_one_discard(rig):
    run = rig.run("healer-dies", steps=80, chaos__failpoints=["g1:forward@8:kill", "g1:heal_recv:kill"])
    assert run.code == Exit.DONE, run.said
    assert len(run.kills()) == 2
    assert len(run.events("g0", "discard")) == 2, "the first death, and the healer's"
    holds(run, steps=80)


def test_more_groups_than_microbatches_are_hot_spares(rig):
    alone = rig.run(
        "spare-alone", groups=1, ranks=1, steps=20, training__local_batch_size=6, training__global_batch_size=12
    )
    spare = rig.run("spare", groups=3, ranks=1, steps=20, training__local_batch_size=6, training__global_batch_size=12)
    assert (alone.code, spare.code) == (Exit.DONE, Exit.DONE), spare.said
    assert any(e["shares"]["g2"] == [] for e in spare.events("g2", "commit"))
    assert spare.series("digest") == alone.series("digest")
    holds(spare, steps=20)


def test_finite_data_is_used_to_the_last_sample_and_every_group_ends(rig):
    """The run ends with the data; its last step is short and token-weighted."""
    keys = {"training__epochs": 2, "training__seq_len": 64, "training__local_batch_size": 2}
    alone = rig.run("finite-alone", groups=1, ranks=1, steps=10_000, **keys)
    killed = rig.run("finite-killed", groups=2, ranks=1, steps=10_000, chaos__failpoints=["g1:backward@5:kill"], **keys)
    assert (alone.code, killed.code) == (Exit.DONE, Exit.DONE), killed.said
    assert killed.series("digest") == alone.series("digest")
    last = list(alone.series("samples").values())[-1]
    assert 0 < last < 6, last
    holds(killed, steps=len(alone.chain))


@pytest.mark.parametrize(("nonfinite", "code"), [("skip", Exit.DONE), ("stop", Exit.NONFINITE)])
def test_a_non_finite_gradient_skips_the_step_or_stops_the_run(rig, nonfinite, code):
    run = rig.run(
        f"nan-{nonfinite}", ranks=1, steps=12, training__nonfinite=nonfinite, chaos__failpoints=["g1:backward@5:nan"]
    )
    assert run.code == code, run.said
    skipped = [e for e in run.events("g0", "commit") if e["outcome"] == "skipped"]
    assert [e["step"] for e in skipped] == [6]
    if nonfinite == "skip":
        run.series("digest")
        holds(run, steps=12)


def test_a_run_of_another_model_is_not_written_over(rig):
    first = rig.run("other-model", ranks=1, steps=4)
    assert first.code == Exit.DONE, first.said
    before = sorted(p.name for p in (first.folder.root / "checkpoints").iterdir())
    again = rig.run("other-model", ranks=1, steps=8, training__seq_len=32)
    assert again.code == Exit.CHECKPOINT, again.said
    assert "other-model" in again.reason or "checkpoint" in again.reason
    assert sorted(p.name for p in (first.folder.root / "checkpoints").iterdir()) == before


def test_too_few_groups_for_too_long_is_exit_3(rig):
    config = rig.config(
        "too-few", groups=2, ranks=1, steps=4, fault_tolerance__min_groups=2, fault_tolerance__start_wait_s=1
    )
    run = rig.run_config(config, groups=["g0"])
    assert run.code == Exit.QUORUM_LOST, run.said
    assert "quorum lost: 1 of at least 2 groups" in run.reason


def test_a_damaged_newest_checkpoint_is_passed_over_and_the_run_goes_on_from_the_one_before(rig):
    whole = rig.run("damaged-alone", groups=1, ranks=1, steps=8)
    first = rig.run("damaged", groups=2, ranks=1, steps=4)
    assert first.code == Exit.DONE, first.said
    newest = max((first.folder.root / "checkpoints").glob("step-*"))
    shard = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    again = rig.run("damaged", groups=2, ranks=1, steps=8)
    assert again.code == Exit.DONE, again.said
    restored = [e["step"] for e in again.events("g0", "restore") if e["source"] == "disk"]
    assert restored == [3], "step 4 is damaged"
    assert again.series("digest") == whole.series("digest")
    holds(again, steps=8)


def test_a_run_does_not_go_on_with_other_texts_under_the_same_path(rig, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", files=8, lines=60)
    options = {"groups": 1, "ranks": 1, "training__dataset_path": corpus}
    assert rig.run("texts", steps=3, **options).code == Exit.DONE
    (corpus / "00.txt").write_text("other words\n" * 60)
    changed = rig.run("texts", steps=6, **options)
    assert changed.code == Exit.CHECKPOINT, changed.said
    assert "of other tokens under the same path" in changed.said
    assert max(e["step"] for e in changed.events("g0", "commit")) == 3, "nothing was trained on them"
    forked = rig.run("texts", steps=6, checkpoint__fork=True, **options)
    assert forked.code == Exit.DONE, forked.said
