"""The sections that say how a run lives: groups and their launch, fault tolerance, checkpoints, metrics, chaos."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.fields import (
    Alias,
    Count,
    Later,
    Members,
    Names,
    Natural,
    NoEquivalent,
    NonNegative,
    Numbers,
    Positive,
    Seconds,
    Section,
    SomeSeconds,
)

INITIAL = Later("initial loading")
SEMI_SYNC = Later("semi-synchronous training")


class Launch(Section):
    """How many groups there are and how their processes are kept alive."""

    groups: Members = 1
    ranks_per_group: Members | None = None
    """Processes of one group. None: the product of the mesh degrees."""
    nodes_per_group: Count = 1
    devices: Numbers = ()
    """Device of each rank, group after group. Empty: rank r of group i takes ``i * ranks_per_group + r``."""
    threads_per_rank: Count = 1
    """Part of what decides bits on CPU: the same for all groups."""
    max_restarts: Natural | None = None
    """Restarts of one group since the last committed step. None: unlimited."""
    backoff_s: Seconds = 1.0
    """Wait before the second restart without a commit; doubles from there. The first restart comes at once."""
    kill_grace_s: Seconds = 30.0
    """Between SIGTERM and SIGKILL."""
    price_per_group_hour: NonNegative | None = None


class FaultTolerance(Section):
    """What is promised when groups come and go, and within which times."""

    min_groups: Members = 1
    """Fewer groups than this commit nothing."""
    batch: Literal["constant", "per_group"] = "constant"
    """constant: a step is always the global batch. per_group: fixed microbatches a group, the batch shrinks."""
    reduction: Literal["exact", "fp32"] = "fp32"
    """exact: integer sums, bit-identical whoever computed what. fp32: half the bytes, another summation order."""
    failure_detection_s: SomeSeconds = 2.0
    """The one knob: silence after which a host is dead. Every other time derives from it unless it is set."""
    first_step_limit_s: SomeSeconds | None = None
    start_wait_s: Seconds | None = None
    heal_limit_s: SomeSeconds | None = None
    """A healer that keeps the others waiting for longer is given up and buried."""
    collective_timeout_s: SomeSeconds | None = None
    quorum_timeout_s: SomeSeconds | None = None
    join_interval_s: Seconds = 0.0
    """Newcomers are let in so far apart, all that ask together at once. 0: whenever they ask."""
    process_group: Literal["auto", "gloo", "nccl"] = "auto"
    interface: str = "lo"
    """Network interface to bind and advertise. Off loopback a shared secret is required."""
    transfer_rate_limit: Positive | None = None
    """Bytes per second that one rank sends to healing peers. None: unlimited."""
    divergence_check: bool = True
    """Compare checksums of the groups' states at each step. They must agree on it."""
    bucket_bytes: Annotated[int, Field(ge=1 << 10)] = 16 << 20
    """Size of a bucket of the reduction across groups."""
    fixed_point_bits: Annotated[int, Field(ge=16, le=56)] = 44
    """Exact reduction works in multiples of 2^-bits."""

    enable: Annotated[bool, NoEquivalent("fault tolerance is always on")] = True
    group_size: Annotated[Natural, Alias("launch.groups", unset=0)] = 0
    min_replica_size: Annotated[Count | None, Alias("fault_tolerance.min_groups")] = None
    process_group_timeout_ms: Annotated[Count | None, Alias("fault_tolerance.collective_timeout_s", scale=1e-3)] = None
    replica_id: Annotated[Natural, NoEquivalent("the launcher or PHALANX_GROUP names the group")] = 0
    semi_sync_method: str | None = None
    sync_steps: Annotated[Count, SEMI_SYNC] = 5
    should_quantize: Annotated[bool, SEMI_SYNC] = False
    fragment_sync_delay: Annotated[Natural, SEMI_SYNC] = 0
    fragment_update_alpha: Annotated[float, SEMI_SYNC] = 0.0


class Security(Section):
    """TLS of our own connections: all three files, or none. The secret is no key: it comes from the environment."""

    tls_certificate: str | None = None
    """PEM, with its chain; its names must cover the addresses that this process listens on."""
    tls_key: str | None = None
    tls_ca: str | None = None
    """PEM of the CA that vouches for every process of the run."""
    tls_mutual: bool = True
    """Servers let nobody in without a certificate of the CA."""


class Checkpoint(Section):
    """State on disk."""

    enable: bool = True
    folder: str = "checkpoints"
    """Below ``job.dump_folder``. ``{group}`` in it is the group's name: each keeps checkpoints of its own."""
    interval: Count = 1
    interval_s: SomeSeconds | None = None
    """At most one save in so many seconds."""
    keep_latest_k: Natural = 5
    """0 keeps all."""
    keep_every: Count | None = None
    """Steps divisible by this are never removed."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "async"
    fork: bool = False
    """Go on from a state whose model, data, batch or optimizer differs from this config's, as a new history."""
    trust: bool = False
    """``initial_load_path`` may be a DCP folder that no digest vouches for: it is unpickled."""
    load_step: Annotated[int, Field(ge=-1)] = -1
    """Start from this step instead of the newest; below the newest only with ``fork``. Met once."""
    exclude_from_loading: Names = ()
    """What ``initial_load_path`` does not give."""
    create_seed_checkpoint: bool = False
    load_only: bool = False
    enable_first_step_checkpoint: bool = False
    """Step 1 is saved whatever ``interval`` says."""
    initial_load_path: str | None = None
    """A checkpoint of another run, or its URL, whose tensors step 0 takes when this run has none of its own; with
    ``initial_load_in_hf`` a Hugging Face folder."""
    initial_load_in_hf: bool = False
    """Step 0 takes its weights from ``initial_load_path``, else from ``model.hf_assets_path``."""
    initial_load_in_hf_quantized: bool = False
    initial_load_model_only: bool = True
    last_save_model_only: bool = False
    """The end of the run leaves a checkpoint of the weights alone in ``exports``, beside the full one."""
    last_save_in_hf: bool = False
    """The end of the run leaves a Hugging Face folder in ``exports``, beside the full checkpoint."""
    export_dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    """Of these two."""
    enable_ft_dataloader_checkpoints: Annotated[bool, NoEquivalent("the position in the data is always state")] = True


class Metrics(Section):
    """What is printed and served."""

    log_freq: Count = 10
    """Steps between progress lines."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Of /metrics and /healthz; 0 takes a free one, and a taken one is replaced by a free one."""
    enable_tensorboard: bool = False
    enable_wandb: bool = False
    save_tb_folder: Annotated[str, Later("TensorBoard")] = "tb"
    save_for_all_ranks: Annotated[bool, Later("TensorBoard and Weights & Biases")] = False
    disable_color_printing: Annotated[bool, NoEquivalent("colour follows the terminal and NO_COLOR")] = False


class Chaos(Section):
    """Faults injected on purpose."""

    scenario: Literal["none", "demo"] = "none"
    """demo: g1 is killed at one third of the run, g0 at two thirds."""
    failpoints: Names = ()
    """Each ``GROUP:NAME[@[STEP][.PART]][#RANK]:ACTION``."""
