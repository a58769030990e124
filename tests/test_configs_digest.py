"""The digest says which training a config is: what it covers, what it leaves out, and that it does not drift."""

from __future__ import annotations

import pytest

from configs.digest import common_differing, common_digest, differing, digest
from configs.load import load, parse_text

BASE = load("debug")


@pytest.mark.parametrize(
    "override",
    [
        "--model.flavor=bench",
        "--model.hf_assets_path=/x",
        "--optimizer.lr=1e-3",
        "--optimizer.weight_decay=0",
        "--lr_scheduler.warmup_steps=11",
        "--training.global_batch_size=48",
        "--training.local_batch_size=1",
        "--training.seq_len=32",
        "--training.vocab_size=1024",
        "--training.cross_document_labels",
        "--training.no_shuffle",
        "--training.max_norm=2.0",
        "--training.epochs=1",
        "--training.mixed_precision_param=bfloat16",
        "--debug.seed=1",
        "--fault_tolerance.reduction=fp32",
        "--fault_tolerance.batch=per_group",
    ],
)
def test_what_changes_the_training_changes_the_digest(override):
    other = load("debug", [override])
    assert digest(other) != digest(BASE)
    assert len(differing(BASE, other)) == 1
    assert len(common_differing(BASE, other)) == 1
    assert common_digest(other) != common_digest(BASE)


@pytest.mark.parametrize(
    "override",
    [
        "--job.name=other",
        "--job.dump_folder=/elsewhere",
        "--training.workers=3",
        "--launch.groups=3",
        "--launch.max_restarts=1",
        "--metrics.port=9000",
        "--chaos.scenario=demo",
        "--chaos.failpoints=g1:backward:kill",
        "--checkpoint.keep_latest_k=9",
        "--checkpoint.interval_s=60",
        "--comm.train_timeout_seconds=9",
        "--fault_tolerance.failure_detection_s=3",
        "--fault_tolerance.min_groups=2",
    ],
)
def test_how_a_run_is_launched_and_watched_does_not(override):
    other = load("debug", [override])
    assert digest(other) == digest(BASE)
    assert common_digest(other) == common_digest(BASE)


@pytest.mark.parametrize(
    "override",
    [
        "--training.steps=61",
        "--debug.digest_interval=3",
        "--checkpoint.interval=2",
        "--fault_tolerance.divergence_check=false",
        "--training.nonfinite=stop",
        "--launch.ranks_per_group=1",
        "--launch.threads_per_rank=2",
        "--fault_tolerance.bucket_bytes=4096",
        "--parallelism.fsdp_reshard_after_forward=always",
    ],
)
def test_groups_must_agree_on_more_than_a_resumed_run_must(override):
    other = load("debug", [override])
    assert digest(other) == digest(BASE)
    assert common_digest(other) != common_digest(BASE)


def test_the_default_batch_counts_as_what_it_comes_to():
    text = "[training]\nlocal_batch_size = 2\n[launch]\nranks_per_group = 2\n"
    two = parse_text(text, ["--launch.groups=2"])
    assert digest(two) != digest(parse_text(text, ["--launch.groups=3"]))
    assert digest(two) == digest(parse_text(text, ["--launch.groups=3", "--training.global_batch_size=8"]))


def test_spelling_does_not_matter():
    assert digest(parse_text("[training]\nmax_norm = 1")) == digest(parse_text("[training]\nmax_norm = 1.0"))
    filled = ["--parallelism.data_parallel_shard_degree=2"]
    assert common_digest(load("debug", filled)) == common_digest(BASE)


def test_the_digest_of_the_defaults_is_this_one():
    # Checkpoints carry it: a change here makes every earlier one another training's. Only on purpose.
    assert digest(parse_text("")) == "37c12096791e863963e1000d97792bfd87f45d850982c50a184119e87a2f90a4"


def test_groups_must_agree_on_the_weights_they_start_from():
    start = ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path"]
    here, there = load("debug", [*start, "here"]), load("debug", [*start, "there"])
    assert digest(here) == digest(BASE)
    assert len({common_digest(config) for config in (BASE, here, there)}) == 3
