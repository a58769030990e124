"""The sections that say what is trained: job, model, optimizer, learning rate, data and batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.fields import (
    Alias,
    Count,
    Later,
    Names,
    Natural,
    NoEquivalent,
    NonNegative,
    Positive,
    Ratio,
    Section,
)

Precision = Literal["float32", "bfloat16"]


class Job(Section):
    """Names and folders of a run."""

    config_file: str | None = None
    """The TOML file, where the command line has no other place for it (``python -m trainer``)."""
    name: Annotated[str, Field(min_length=1)] = "phalanx"
    """The run's name: label of its metrics, and what the lighthouse admits groups by."""
    dump_folder: Annotated[str, Field(min_length=1)] = "./outputs"
    """The run folder."""
    cache_folder: str = "~/.cache/phalanx"
    """Tokenizers and token stores, shared by runs, keyed by content."""
    description: str = ""
    print_config: Annotated[bool, NoEquivalent("the resolved config is written to the run folder")] = False
    print_args: Annotated[bool, NoEquivalent("the resolved config is written to the run folder")] = False
    save_config_file: Annotated[
        str | None, NoEquivalent("the resolved config is always written to config.toml of the run folder")
    ] = None
    use_for_integration_test: Annotated[bool, NoEquivalent("tests find configs by themselves")] = False
    custom_config_module: str = ""


class Model(Section):
    """Which model, and the assets that come with it."""

    name: str = "llama3"
    flavor: str = "debug"
    hf_assets_path: str | None = None
    """Folder with ``tokenizer.json``. Without it a byte-level BPE of ``training.vocab_size`` is trained on the data."""
    tokenizer_path: Annotated[str | None, Alias("model.hf_assets_path")] = None
    converters: Names = ()
    print_after_conversion: Annotated[bool, NoEquivalent("no converter changes the model")] = False


class Optimizer(Section):
    """The optimizer and its constants."""

    name: Literal["AdamW", "Adam"] = "AdamW"
    lr: NonNegative = 8e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.1
    implementation: Literal["for-loop", "foreach", "fused"] = "fused"
    early_step_in_backward: bool = False


class LRScheduler(Section):
    """Warmup, stable, decay: the learning rate as a function of the committed step."""

    warmup_steps: Natural = 200
    total_steps: Count | None = None
    """Length of the schedule. None: ``training.steps``."""
    decay_ratio: Ratio | None = None
    """Share of the schedule over which the rate decays at the end. None: from the end of the warmup on."""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    min_lr_factor: Ratio = 0.0
    """The rate decays to ``optimizer.lr`` times this."""


class DataLoader(Section):
    """torchtitan's loader options; the prefetching here follows the plan of the step."""

    num_workers: Annotated[Natural | None, Alias("training.workers")] = None
    persistent_workers: Annotated[bool, NoEquivalent("workers live as long as the rank")] = False
    pin_memory: Annotated[bool, NoEquivalent("memory is pinned where the device needs it")] = False
    prefetch_factor: Annotated[Count | None, NoEquivalent("what is prefetched follows the plan")] = None


class Training(Section):
    """Data, batch, length and precision."""

    dataset: str = "python_stdlib"
    dataset_path: str | None = None
    """Required by ``text`` and ``jsonl``; looked at when used."""
    vocab_size: Annotated[int, Field(ge=258, le=1 << 20)] = 2048
    """Size of the tokenizer trained on the data when ``model.hf_assets_path`` gives none."""
    cross_document_labels: bool = False
    """Let the last token of a document predict the first of the next one."""
    shuffle: bool = True
    workers: Natural = 0
    """Processes a rank that read ahead; 0 reads in the rank itself."""
    dataloader: DataLoader = DataLoader()
    epochs: Count | None = None
    """Passes over the data after which the run ends, if ``steps`` does not end it earlier. None: no limit."""

    local_batch_size: Count = 8
    """Sequences of one microbatch on one data-parallel rank."""
    global_batch_size: int = -1
    """Sequences of one step over all groups. -1: local_batch_size x data-parallel ranks of a group x launch.groups."""
    seq_len: Count = 2048
    steps: Count = 10_000
    max_norm: Positive = 1.0
    """The whole gradient is clipped to this norm."""

    mixed_precision_param: Precision = "bfloat16"
    mixed_precision_reduce: Precision = "float32"
    dtype: Precision = "float32"
    enable_cpu_offload: bool = False

    nonfinite: Literal["skip", "stop"] = "skip"
    """What a step with a non-finite microbatch does."""
    nonfinite_limit: Count = 10
    """Skips in a row after which the run stops with exit code 5."""

    gc_freq: Annotated[Count, NoEquivalent("the garbage collector is not scheduled by step")] = 50
    gc_debug: Annotated[bool, NoEquivalent("the garbage collector is not scheduled by step")] = False


class ValidationLoader(Section):
    """Loader options of the evaluation."""

    num_workers: Annotated[Natural, Later("validation")] = 0
    persistent_workers: Annotated[bool, Later("validation")] = False
    pin_memory: Annotated[bool, Later("validation")] = False
    prefetch_factor: Annotated[Count | None, Later("validation")] = None


class Validation(Section):
    """Evaluation during training."""

    enable: bool = False
    dataset: Annotated[str, Later("validation")] = "c4_validation"
    dataset_path: Annotated[str | None, Later("validation")] = None
    local_batch_size: Annotated[Count, Later("validation")] = 8
    seq_len: Annotated[Count, Later("validation")] = 2048
    freq: Annotated[Count, Later("validation")] = 10
    steps: Annotated[int, Field(ge=-1), Later("validation")] = -1
    dataloader: ValidationLoader = ValidationLoader()
