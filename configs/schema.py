"""The whole config of a run: one frozen object that every part reads.

Section and key names are torchtitan 0.2's wherever the meaning is the same, so that such a file loads as it stands.
``configs.load`` makes it, ``configs.checks`` judges what single keys cannot say, ``configs.unsupported`` refuses what
does not exist yet.
"""

from __future__ import annotations

from configs.fields import Section
from configs.schema_layout import (
    ActivationCheckpoint,
    Comm,
    Compile,
    Debug,
    Experimental,
    MemoryEstimation,
    Parallelism,
    Profiling,
    Quantize,
)
from configs.schema_run import Chaos, Checkpoint, FaultTolerance, Launch, Metrics, Security
from configs.schema_train import Job, LRScheduler, Model, Optimizer, Training, Validation


class Config(Section):
    """All sections. ``Config()`` is the defaults."""

    job: Job = Job()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    lr_scheduler: LRScheduler = LRScheduler()
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    activation_checkpoint: ActivationCheckpoint = ActivationCheckpoint()
    compile: Compile = Compile()
    quantize: Quantize = Quantize()
    checkpoint: Checkpoint = Checkpoint()
    metrics: Metrics = Metrics()
    profiling: Profiling = Profiling()
    comm: Comm = Comm()
    debug: Debug = Debug()
    validation: Validation = Validation()
    memory_estimation: MemoryEstimation = MemoryEstimation()
    experimental: Experimental = Experimental()
    launch: Launch = Launch()
    chaos: Chaos = Chaos()
    fault_tolerance: FaultTolerance = FaultTolerance()
    security: Security = Security()
