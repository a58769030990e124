"""The sections that say how one group computes: its mesh, recomputation, compilation, float8, communication.

They change where and how fast the numbers are made, not which training it is.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.fields import Count, Later, Names, Natural, NestedNames, NoEquivalent, Positive, Ratio, Section

PIPELINE = Later("pipeline parallelism")
TENSOR = Later("tensor parallelism")
CONTEXT = Later("context parallelism")
EXPERT = Later("expert parallelism")
RECOMPUTE = Later("activation checkpointing")
COMPILE = Later("torch.compile")
FLOAT8 = Later("float8 training")
MX = Later("MXFP8 training")
PROFILING = Later("profiling")


class Parallelism(Section):
    """The mesh of one group. Replicas are groups: ``launch.groups``."""

    data_parallel_shard_degree: int = -1
    """Ranks over which FSDP2 shards. -1: what the other degrees leave of the group."""
    data_parallel_replicate_degree: Count = 1
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    tensor_parallel_degree: Count = 1
    enable_async_tensor_parallel: Annotated[bool, TENSOR] = False
    disable_loss_parallel: Annotated[bool, TENSOR] = False
    pipeline_parallel_degree: Count = 1
    pipeline_parallel_schedule: Annotated[str, PIPELINE] = "1F1B"
    pipeline_parallel_schedule_csv: Annotated[str | None, PIPELINE] = None
    pipeline_parallel_microbatch_size: Annotated[Count, PIPELINE] = 1
    pipeline_parallel_split_points: Annotated[Names, PIPELINE] = ()
    pipeline_parallel_first_stage_less_layers: Annotated[Natural, PIPELINE] = 1
    pipeline_parallel_last_stage_less_layers: Annotated[Natural, PIPELINE] = 1
    pipeline_parallel_layers_per_stage: Annotated[Count | None, PIPELINE] = None
    pipeline_parallel_expert_parallel_overlap: Annotated[bool, PIPELINE] = True
    module_fqns_per_model_part: Annotated[NestedNames | None, PIPELINE] = None
    context_parallel_degree: Count = 1
    context_parallel_rotate_method: Annotated[Literal["allgather", "alltoall"], CONTEXT] = "allgather"
    context_parallel_load_balancer: Annotated[str | None, CONTEXT] = "headtail"
    expert_parallel_degree: Count = 1
    expert_tensor_parallel_degree: Count = 1
    expert_parallel_comm_backend: Annotated[str, EXPERT] = "standard"
    enable_compiled_autograd: bool = False


class ActivationCheckpoint(Section):
    """Recomputation of activations in the backward."""

    mode: Literal["none", "selective", "full", "memory_budget"] = "none"
    selective_ac_option: Annotated[str, RECOMPUTE] = "op"
    per_op_sac_force_recompute_mm_shapes_by_fqns: Annotated[Names, RECOMPUTE] = ("moe.router.gate",)
    early_stop: Annotated[bool, RECOMPUTE] = False
    memory_budget: Annotated[Ratio, RECOMPUTE] = 0.5
    visualize_memory_budget_pareto: Annotated[bool, RECOMPUTE] = False
    preserve_rng_state: Annotated[bool, RECOMPUTE] = False
    determinism_check: Annotated[str, RECOMPUTE] = "default"
    debug: Annotated[bool, RECOMPUTE] = False


class Compile(Section):
    """torch.compile."""

    enable: bool = False
    components: Annotated[Names, COMPILE] = ("model", "loss")
    backend: Annotated[str, COMPILE] = "inductor"


class Float8Linear(Section):
    """Float8 linear layers; asked for through ``model.converters``."""

    enable_fsdp_float8_all_gather: Annotated[bool, FLOAT8] = False
    precompute_float8_dynamic_scale_for_fsdp: Annotated[bool, FLOAT8] = False
    recipe_name: Annotated[Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] | None, FLOAT8] = None
    filter_fqns: Annotated[Names, FLOAT8] = ()
    """Modules left in high precision; ``auto_filter_small_kn`` picks those too small to gain."""
    emulate: Annotated[bool, FLOAT8] = False


class MXLinear(Section):
    """MXFP8 linear layers."""

    mxfp8_dim1_cast_kernel_choice: Annotated[Literal["triton", "cuda", "torch"], MX] = "triton"
    recipe_name: Annotated[str, MX] = "mxfp8_cublas"
    filter_fqns: Annotated[Names, MX] = ("output",)


class Float8Grouped(Section):
    """Float8 grouped products of experts."""

    fqns: Annotated[Names | str, FLOAT8] = ()


class MXGrouped(Section):
    """MXFP8 grouped products of experts."""

    recipe_name: Annotated[str, MX] = "mxfp8"
    fqns: Annotated[Names | str, MX] = ()


class QuantizeLinear(Section):
    """Linear layers in low precision."""

    float8: Float8Linear = Float8Linear()
    mx: MXLinear = MXLinear()


class QuantizeGrouped(Section):
    """Grouped products in low precision."""

    float8: Float8Grouped = Float8Grouped()
    mx: MXGrouped = MXGrouped()


class Quantize(Section):
    """Training in low precision."""

    linear: QuantizeLinear = QuantizeLinear()
    grouped_mm: QuantizeGrouped = QuantizeGrouped()


DERIVED = NoEquivalent("timeouts derive from fault_tolerance.failure_detection_s")
RECORDER = Later("the flight recorder")


class Comm(Section):
    """Communication inside a group."""

    init_timeout_seconds: Annotated[Positive, DERIVED] = 300.0
    train_timeout_seconds: Annotated[Positive, DERIVED] = 100.0
    trace_buf_size: Annotated[Natural, RECORDER] = 20_000
    save_traces_folder: Annotated[str, RECORDER] = "comm_traces"
    save_traces_file_prefix: Annotated[str, RECORDER] = "rank_"
    mode: Literal["default", "fake_backend", "local_tensor"] = "default"


class Profiling(Section):
    """Traces and memory snapshots."""

    enable_profiling: bool = False
    save_traces_folder: Annotated[str, PROFILING] = "profile_traces"
    profile_freq: Annotated[Count, PROFILING] = 10
    profiler_active: Annotated[Count, PROFILING] = 1
    profiler_warmup: Annotated[Natural, PROFILING] = 3
    enable_memory_snapshot: bool = False
    save_memory_snapshot_folder: Annotated[str, PROFILING] = "memory_snapshot"


class MemoryEstimation(Section):
    """torchtitan's estimate of memory before a run."""

    enable: bool = False
    disable_fake_mode: Annotated[bool, Later("the memory estimate")] = False


class Debug(Section):
    """Seeds, determinism and digests."""

    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    deterministic: bool = False
    deterministic_warn_only: bool = False
    moe_force_load_balance: Annotated[bool, EXPERT] = False
    digest_interval: Natural = 0
    """Digest of the whole state in every k-th commit; 0 never."""


class Experimental(Section):
    """Code of the user's own."""

    custom_import: str = ""
    """Module imported before anything is built; it may register data sets."""
    custom_args_module: str = ""
