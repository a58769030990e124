"""What keys must say together: degrees and ranks, batch and ranks, groups, failpoints, and the order of time limits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import failpoints, shapes, timeouts
from configs.load import Config, ConfigError, load, parse_text


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load("debug", overrides)
    return str(caught.value)


def test_shapes_of_the_debug_config():
    config = load("debug")
    assert shapes.ranks_per_group(config) == shapes.data_parallel_ranks(config) == 2
    assert shapes.microbatch_samples(config) == 4
    assert shapes.global_batch(config) == 24
    assert shapes.microbatches(config) == 6
    assert shapes.world_size(config) == 4
    assert shapes.tokens_per_step(config) == 24 * 64
    assert shapes.efficiency(config, 2) == 1.0
    assert shapes.efficiency(config, 4) == 6 / 8


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("batch", ["constant", "per_group"])
def test_the_debug_config_fits_one_to_three_groups_of_one_or_two_ranks(groups, ranks, batch):
    overrides = [f"--launch.groups={groups}", f"--launch.ranks_per_group={ranks}", f"--fault_tolerance.batch={batch}"]
    assert shapes.global_batch(load("debug", overrides)) == 24


def test_the_default_batch_is_one_microbatch_a_group():
    config = parse_text("[launch]\ngroups = 3\nranks_per_group = 2\n[training]\nlocal_batch_size = 4\n")
    assert (shapes.global_batch(config), shapes.microbatches(config)) == (24, 3)


def test_ranks_follow_the_degrees_where_they_are_not_given():
    config = parse_text("[parallelism]\ndata_parallel_shard_degree = 4\n")
    assert shapes.ranks_per_group(config) == shapes.shard_degree(config) == 4


def test_impossible_degrees_and_batches_are_refused():
    assert "3 is not 2 x 1" in refused("--parallelism.data_parallel_shard_degree=2", "--launch.ranks_per_group=3")
    assert ">= 1, or -1" in refused("--parallelism.data_parallel_shard_degree", "0")
    assert "a multiple of 4" in refused("--training.global_batch_size", "25")
    assert ">= 1, or -1" in refused("--training.global_batch_size", "0")
    assert "for each group" in refused("--launch.groups=4", "--fault_tolerance.batch=per_group")
    assert "one device for each of 2 x 2" in refused("--launch.devices=0,1")


def test_groups_that_cannot_be():
    assert "at most launch.groups = 2" in refused("--fault_tolerance.min_groups", "3")
    assert "at least 2 groups" in refused("--chaos.scenario=demo", "--launch.groups=1")


def test_data_sets_with_a_path_need_one():
    assert "training.dataset_path" in refused("--training.dataset", "jsonl")
    assert load("debug", ["--training.dataset=jsonl", "--training.dataset_path=/nowhere"])  # looked at when used


def test_a_module_of_the_users_may_bring_a_data_set():
    assert "expected one of" in refused("--training.dataset", "mine")
    assert load("debug", ["--training.dataset=mine", "--experimental.custom_import=my.data"])


@pytest.mark.parametrize("folder", ["", "..", "/tmp/x", "events", "a/../../b"])
def test_checkpoints_have_a_folder_of_their_own(folder):
    assert "checkpoint.folder" in refused(f"--checkpoint.folder={folder}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "g1:backward@20.1#1:kill",
            failpoints.Failpoint(group="g1", name="backward", step=20, part=1, rank=1, action="kill"),
        ),
        ("g0:vote_after:stop", failpoints.Failpoint(group="g0", name="vote_after", action="stop")),
        ("g0:build@3:delay=12", failpoints.Failpoint(group="g0", name="build", step=3, action="delay", argument=12.0)),
        ("g0:save_write#0:exit=7", failpoints.Failpoint(group="g0", name="save_write", action="exit", argument=7.0)),
        ("g1:heal_send@.75:corrupt", failpoints.Failpoint(group="g1", name="heal_send", part=75, action="corrupt")),
        (
            "g1:reduce@4.2:stop=1.5",
            failpoints.Failpoint(group="g1", name="reduce", step=4, part=2, action="stop", argument=1.5),
        ),
        ("g0:save_rename:full", failpoints.Failpoint(group="g0", name="save_rename", action="full")),
        ("g0:agree@3:flip", failpoints.Failpoint(group="g0", name="agree", step=3, action="flip")),
        ("g0:forward@2:nan", failpoints.Failpoint(group="g0", name="forward", step=2, action="nan")),
    ],
)
def test_failpoints(text, expected):
    assert failpoints.parse(text) == expected
    assert failpoints.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g1:backwrd:kill", "did you mean backward"),
        ("g1:backward:kil", "did you mean kill"),
        ("g1:backward", "expected GROUP:NAME"),
        ("g1:backward@x:kill", "expected GROUP:NAME"),
        ("g1:reduce@:kill", "expected GROUP:NAME"),
        ("g1:vote_after@3.1:kill", "no parts"),
        ("g1:heal_recv@.101:kill", "up to 100"),
        ("g1:reduce:nan", "forward and backward only"),
        ("g1:reduce:corrupt", "heal_send only"),
        ("g1:reduce:full", "save_write and save_rename only"),
        ("g1:data:flip", "acts in agree"),
        ("g1:reduce:stop=x", "stop or stop=SECONDS"),
        ("g1:reduce:trunkate", "did you mean truncate"),
        ("g1:reduce:kill=3", "takes no value"),
        ("g1:reduce:delay", "delay=SECONDS"),
        ("g1:reduce:delay=-1", "delay=SECONDS"),
        ("g1:reduce:delay=inf", "delay=SECONDS"),
        ("g1:reduce:exit=256", "exit=CODE"),
        ("g1:reduce#2:kill", "rank below 2"),
        ("g2:reduce:kill", "g0 to g1"),
        ("g0:data@60:kill", "expected a step up to 59"),
        ("g0:save_write@61:kill", "expected a step up to 60"),
        ("g0:build@3:kill", "expected a step up to 0"),
        ("g1:backward@2.99:kill", "expected a microbatch below"),
    ],
)
def test_bad_failpoints_are_config_errors(text, message):
    assert message in refused("--chaos.failpoints", f"g0:agree:kill,{text}")


def test_the_names_of_failpoints_are_listed_once_and_only_where_none_is_alike():
    told = refused("--chaos.failpoints", "g0:backwrd:kill,g0:qqqq:kill,g0:zzzz:kill")
    assert told.count("quorum_before") == 1
    assert told.count("g0:zzzz:kill") == 1, "the list that was given is not repeated either"
    both = refused("--chaos.failpoints", "g0:bckward:kil")
    assert "did you mean backward" in both
    assert "did you mean kill" in both
    assert "did you mean backward" in told


def test_limits_derive_from_the_knob_and_from_what_was_seen():
    config = load("debug")
    quiet, busy = timeouts.derive(config), timeouts.derive(config, step_s=12.0, heal_s=100.0)
    assert quiet.failure_detection_s == 2.0
    assert quiet.collective_timeout_s == 30.0
    assert busy.collective_timeout_s == 300.0
    slow = timeouts.derive(load("debug", ["--fault_tolerance.failure_detection_s", "10"]))
    assert slow.collective_timeout_s == 100.0


def test_limits_that_are_set_are_kept_and_named():
    limits = timeouts.derive(load("debug", ["--fault_tolerance.collective_timeout_s", "45"]), step_s=12.0)
    assert limits.collective_timeout_s == 45.0
    assert "set by fault_tolerance.collective_timeout_s" in limits.table()
    assert len(limits.table().splitlines()) == len(dataclasses.fields(limits))


@given(
    detection=st.floats(0.01, 1e4),
    step=st.none() | st.floats(0, 1e4),
    heal=st.none() | st.floats(0, 1e5),
)
def test_derived_limits_are_always_in_order(detection, step, heal):
    ft = Config().fault_tolerance.model_copy(update={"failure_detection_s": detection})
    limits = timeouts.derive(Config().model_copy(update={"fault_tolerance": ft}), step_s=step, heal_s=heal)
    assert timeouts.violations(limits) == []
    assert detection < limits.transfer_stall_s < limits.collective_timeout_s < limits.quorum_timeout_s


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("--fault_tolerance.collective_timeout_s=1",), "collective_timeout_s"),
        (("--fault_tolerance.process_group_timeout_ms=1000",), "process_group_timeout_ms"),
        (("--fault_tolerance.first_step_limit_s=20",), "first_step_limit_s"),
        (("--fault_tolerance.quorum_timeout_s=60",), "quorum_timeout_s"),
        (("--fault_tolerance.failure_detection_s=50", "--fault_tolerance.collective_timeout_s=40"), "collective"),
    ],
)
def test_limits_in_the_wrong_order_are_refused_by_name(overrides, key):
    message = refused(*overrides)
    assert f"fault_tolerance.{key}" in message
    assert "else " in message


def test_a_start_from_foreign_weights_needs_their_folder():
    assert "expected the folder in checkpoint.initial_load_path" in refused("--checkpoint.initial_load_in_hf")
    for key in ("checkpoint.initial_load_path", "model.hf_assets_path"):
        assert load("debug", ["--checkpoint.initial_load_in_hf", f"--{key}", "there"])


@pytest.mark.parametrize(
    "key",
    [
        "checkpoint.folder",
        "checkpoint.initial_load_path",
        "job.dump_folder",
        "job.cache_folder",
        "job.name",
        "training.dataset_path",
        "model.hf_assets_path",
        "model.tokenizer_path",
        "security.tls_key",
        "experimental.custom_import",
    ],
)
@pytest.mark.parametrize("letter", ["\0", "\n", "\x7f", "\x85"])
def test_control_characters_are_refused_with_all_other_problems(key, letter):
    message = refused(f"--{key}=a{letter}b", "--training.steps=none")
    assert f"command line: {key}: expected text without control characters, found " in message
    assert "training.steps" in message


def test_control_characters_in_a_file_are_refused_and_a_description_may_have_lines():
    with pytest.raises(ConfigError) as caught:
        parse_text('[checkpoint]\nfolder = "a\\u0000b"\n[job]\ndump_folder = "x\\u0007"\n')
    assert {problem.key for problem in caught.value.problems} == {"checkpoint.folder", "job.dump_folder"}
    assert parse_text('[job]\ndescription = """two\nlines"""\n').job.description == "two\nlines"


def test_paths_that_name_nothing_are_refused():
    assert "checkpoint.initial_load_path: expected a folder" in refused("--checkpoint.initial_load_path=")
    for url in ("s3://", "gs:///", "file://"):
        assert f"expected a place in the store: {url}NAME/..., found {url!r}" in refused(f"--checkpoint.folder={url}")
        assert "checkpoint.initial_load_path: expected a folder" in refused(f"--checkpoint.initial_load_path={url}")
