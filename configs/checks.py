"""What single keys cannot say: degrees against ranks, batch against ranks, names against what they need.

Each check returns findings; it reads a config whose keys are valid one by one. Called by ``configs.load`` only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import PurePath

from configs import failpoints, known, shapes, timeouts
from configs.names import URL_SCHEMES, is_url, nearest
from configs.schema import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong between keys."""

    keys: tuple[str, ...]
    """Those involved, the likeliest to be mended first."""
    expected: str
    nearest: str | None = None
    found: bool = True
    """Whether what was written is told with it; not where ``expected`` quotes the part that is wrong."""


def findings(config: Config) -> list[Finding]:
    """Everything wrong with the config as a whole."""
    return [finding for check in CHECKS for finding in check(config)]


def _names(config: Config) -> Iterator[Finding]:
    name, flavor, dataset = config.model.name, config.model.flavor, config.training.dataset
    models = (*known.MODELS, *known.LATER_MODELS)
    if name not in models:
        yield Finding(keys=("model.name",), expected=_one_of(known.MODELS), nearest=nearest(name, models))
    elif name in known.MODELS:
        flavors = known.MODELS[name]
        if flavor not in (*flavors, *known.LATER_FLAVORS.get(name, ())):
            yield Finding(keys=("model.flavor",), expected=_one_of(flavors), nearest=nearest(flavor, flavors))
    data = (*known.DATASETS, *known.LATER_DATASETS)
    if dataset not in data and not config.experimental.custom_import:
        expected = _one_of(known.DATASETS) + ", or one that experimental.custom_import registers"
        yield Finding(keys=("training.dataset",), expected=expected, nearest=nearest(dataset, data))
    if dataset in known.PATH_DATASETS and not config.training.dataset_path:
        expected = f"expected training.dataset_path: the data set {dataset!r} is read from there"
        yield Finding(keys=("training.dataset", "training.dataset_path"), expected=expected)


def _tls(config: Config) -> Iterator[Finding]:
    names = ("tls_certificate", "tls_key", "tls_ca")
    missing = [f"security.{name}" for name in names if getattr(config.security, name) is None]
    if 0 < len(missing) < len(names):
        yield Finding(keys=tuple(missing), expected="expected all three of security.tls_*, or none")


def _mesh(config: Config) -> Iterator[Finding]:
    p, ranks = config.parallelism, shapes.ranks_per_group(config)
    shard, rest = p.data_parallel_shard_degree, p.data_parallel_replicate_degree * shapes.model_ranks(config)
    if shard < 1 and shard != -1:
        expected = "expected a number >= 1, or -1 for what the other degrees leave"
        yield Finding(keys=("parallelism.data_parallel_shard_degree",), expected=expected)
    elif ranks != max(shard, 1) * rest and (shard != -1 or ranks % rest):
        product = f"{shard} x {rest}" if shard != -1 else f"a multiple of {rest}"
        expected = (
            "expected launch.ranks_per_group to be parallelism.data_parallel_shard_degree x the other mesh degrees: "
            f"{ranks} is not {product}"
        )
        yield Finding(keys=("launch.ranks_per_group", *_DEGREES), expected=expected)
    if config.launch.devices and len(config.launch.devices) != config.launch.groups * ranks:
        expected = f"expected one device for each of {config.launch.groups} x {ranks} ranks"
        yield Finding(keys=("launch.devices", "launch.groups", "launch.ranks_per_group"), expected=expected)


def _batch(config: Config) -> Iterator[Finding]:
    if any(_mesh(config)):
        return
    key = "training.global_batch_size"
    keys = (key, "training.local_batch_size", "launch.ranks_per_group", *_DEGREES)
    size, micro = config.training.global_batch_size, shapes.microbatch_samples(config)
    if size < 1 and size != -1:
        yield Finding(keys=(key,), expected="expected a number >= 1, or -1 for one microbatch a group")
    elif shapes.global_batch(config) % micro:
        expected = f"expected a multiple of {micro}, the sequences of one microbatch (local_batch_size x ranks)"
        yield Finding(keys=keys, expected=expected)
    elif config.fault_tolerance.batch == "per_group" and shapes.microbatches(config) % config.launch.groups:
        m, groups = shapes.microbatches(config), config.launch.groups
        expected = f"expected as many microbatches for each group: {m} over {groups} groups with batch = per_group"
        yield Finding(keys=(*keys, "launch.groups", "fault_tolerance.batch"), expected=expected)


def _groups(config: Config) -> Iterator[Finding]:
    groups = config.launch.groups
    if config.fault_tolerance.min_groups > groups:
        expected = f"expected at most launch.groups = {groups}"
        yield Finding(keys=("fault_tolerance.min_groups", "launch.groups"), expected=expected)
    if config.chaos.scenario == "demo" and (groups < 2 or config.training.steps < 3):
        expected = "expected at least 2 groups and 3 steps for the scenario that kills two groups in turn"
        yield Finding(keys=("chaos.scenario", "launch.groups", "training.steps"), expected=expected)


def _failpoints(config: Config) -> Iterator[Finding]:
    told: set[str] = set()
    for text in config.chaos.failpoints:
        expected = _misfit(text, config, told)
        if expected:
            yield Finding(keys=("chaos.failpoints",), expected=f"{text}: {expected}", found=False)


def _misfit(text: str, config: Config, told: set[str]) -> str | None:
    """What is wrong with a failpoint. ``told``: the lists of names that were told with an earlier one."""
    ranks, groups, steps = shapes.ranks_per_group(config), config.launch.groups, config.training.steps
    try:
        point = failpoints.parse(text)
    except failpoints.UnknownName as error:
        choices = [each for each in error.choices if each not in told]
        told.update(choices)
        return "; ".join([str(error), *choices])
    except ValueError as error:
        return str(error)
    if point.rank >= ranks:
        return f"expected a rank below {ranks}, the ranks of a group"
    index = re.fullmatch(r"g(\d+)", point.group)
    if index and int(index[1]) >= groups:
        return f"expected one of the groups g0 to g{groups - 1}"
    plan = shapes.microbatches(config)
    if failpoints.PARTS.get(point.name) == "microbatch" and (point.part or 0) >= plan:
        return f"expected a microbatch below {plan}, those of a step"
    last = failpoints.last_step(point.name, steps)
    if point.step is not None and point.step > last:
        return f"expected a step up to {last}, the last at which a run of {steps} steps passes {point.name}"
    return None


def _folders(config: Config) -> Iterator[Finding]:
    folder = config.checkpoint.folder
    if is_url(folder):
        if folder.partition("://")[0] not in URL_SCHEMES:
            expected = f"expected a folder below job.dump_folder, or a URL of {', '.join(URL_SCHEMES)}"
            yield Finding(keys=("checkpoint.folder",), expected=expected)
        elif _names_nothing(folder):
            yield Finding(keys=("checkpoint.folder",), expected=f"expected a place in the store: {folder}NAME/...")
        return
    parts = PurePath(config.checkpoint.folder).parts
    if not parts or ".." in parts or parts[0] in _RESERVED or PurePath(config.checkpoint.folder).is_absolute():
        expected = f"expected a folder of its own below job.dump_folder, none of {', '.join(sorted(_RESERVED))}"
        yield Finding(keys=("checkpoint.folder",), expected=expected)


def _names_nothing(url: str) -> bool:
    """A scheme alone."""
    return not url.partition("://")[2].strip("/")


def _initial(config: Config) -> Iterator[Finding]:
    checkpoint = config.checkpoint
    source = checkpoint.initial_load_path or config.model.hf_assets_path
    if checkpoint.initial_load_in_hf and not source:
        keys = ("checkpoint.initial_load_in_hf", "checkpoint.initial_load_path", "model.hf_assets_path")
        yield Finding(keys=keys, expected="expected the folder in checkpoint.initial_load_path or model.hf_assets_path")
    path = checkpoint.initial_load_path or ""
    if checkpoint.initial_load_path == "" or (is_url(path) and _names_nothing(path)):
        expected = "expected a folder, or a URL with a place in the store; without the key the seed gives step 0"
        yield Finding(keys=("checkpoint.initial_load_path",), expected=expected)
    elif is_url(path) and (checkpoint.initial_load_in_hf or path.partition("://")[0] not in URL_SCHEMES):
        kinds = "a folder" if checkpoint.initial_load_in_hf else f"a folder, or a URL of {', '.join(URL_SCHEMES)}"
        yield Finding(keys=("checkpoint.initial_load_path",), expected=f"expected {kinds}")


def _loading(config: Config) -> Iterator[Finding]:
    c = config.checkpoint
    if not c.enable:
        return
    excluded = set(c.exclude_from_loading)
    if unknown := sorted(excluded - _LOADABLE):
        expected = f"expected some of {', '.join(sorted(_LOADABLE))}; not {', '.join(unknown)}"
        near = nearest(unknown[0], _LOADABLE)
        yield Finding(keys=("checkpoint.exclude_from_loading",), expected=expected, nearest=near)
    if excluded and c.initial_load_path is None:
        expected = "expected checkpoint.initial_load_path with it: a run's own checkpoints are loaded as a whole"
        yield Finding(keys=("checkpoint.exclude_from_loading",), expected=expected)
    if c.trust and c.initial_load_path is None:
        expected = "expected checkpoint.initial_load_path with it: a run's own checkpoints have digests"
        yield Finding(keys=("checkpoint.trust",), expected=expected)
    if c.initial_load_path is None or c.initial_load_in_hf:
        return
    if not c.initial_load_model_only and not excluded >= _CLOCKS:
        expected = f"expected {', '.join(sorted(_CLOCKS))} in checkpoint.exclude_from_loading: the clocks start afresh"
        yield Finding(keys=("checkpoint.initial_load_model_only",), expected=expected)
    if "model" in excluded and (c.initial_load_model_only or "optimizer" in excluded):
        yield Finding(keys=("checkpoint.exclude_from_loading",), expected="expected something that is loaded")


def _times(config: Config) -> Iterator[Finding]:
    for keys, expected in timeouts.violations(timeouts.derive(config)):
        yield Finding(keys=keys, expected=expected)


def _one_of(names: Iterator[str] | tuple[str, ...] | dict[str, tuple[str, ...]]) -> str:
    return "expected one of " + ", ".join(repr(name) for name in names)


_RESERVED = {"events", "exports", "logs", "spool", "tb", "tokenizer", "traces"}
_CLOCKS = {"lr_scheduler", "data_loader", "train_state"}
_LOADABLE = {"model", "optimizer", *_CLOCKS}
_DEGREES = (
    "parallelism.data_parallel_shard_degree",
    "parallelism.data_parallel_replicate_degree",
    "parallelism.tensor_parallel_degree",
    "parallelism.pipeline_parallel_degree",
    "parallelism.context_parallel_degree",
)
CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _names,
    _mesh,
    _batch,
    _groups,
    _failpoints,
    _folders,
    _initial,
    _loading,
    _times,
    _tls,
)
