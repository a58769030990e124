"""The composition root: builds every part of one rank and introduces them to each other.

It alone (with ``trainer.connection``) knows all three middle packages. Order matters and is the order below: process
group, data, model on the meta device, sharding, memory, weights from the seed, optimizer state, then the seat. At the
end the rank has rehearsed one forward and backward with void state, so joining costs the others nothing but the heal.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh

from checkpointing.fetch import fetch
from checkpointing.server import StateServer
from checkpointing.state import Clocks, closed_list, ensure_optimizer_state
from configs import shapes
from configs.digest import state_digest_of
from configs.run_folder import EventSink, RunFolder
from configs.schema import Config
from configs.secret import secret_key
from configs.words import Lineage
from replica_groups.identity import Place, serve_seat_store
from replica_groups.mesh import backend_for, build_mesh, device_of, shard
from replica_groups.plan import BatchShape
from replica_groups.reduce import GradientReducer, local, precision
from replica_groups.seat import Limits, Seat, serve_manager
from trainer.announce import announce, event_sink, set_failpoints
from trainer.compute import Compute
from trainer.connection import Connection
from trainer.damage import flip_bit
from trainer.data.assets import keep_tokenizer
from trainer.data.build import Data
from trainer.data.build import build as build_data
from trainer.disk import build_disk, cpu_group
from trainer.exports import last_export
from trainer.failpoints import Failpoints
from trainer.initial import hf_start
from trainer.initial_checkpoint import checkpoint_start
from trainer.laps import Laps
from trainer.models.registry import ModelSpec, get
from trainer.optimizer import build_optimizer
from trainer.parts import Parts
from trainer.phases import Phase, Phases
from trainer.schedule import schedule_of
from trainer.sentinel import Sentinel
from trainer.state import StateKeeper
from trainer.voucher import rehearse

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(
    config: Config, place: Place, *, store: Store, connection: Connection, run: RunFolder, laps: Laps
) -> tuple[Parts, StateKeeper]:
    """Everything of one rank, rehearsed. Collective over the group."""
    phases = Phases()
    sink = event_sink(config, place, connection, run)
    failpoints = set_failpoints(config, place, connection, run)
    failpoints("build")
    device = device_of(place.local_rank)
    _init_group(place, store, device=device, timeout_s=connection.timeouts.first_step_limit_s)
    torch.use_deterministic_algorithms(config.debug.deterministic, warn_only=config.debug.deterministic_warn_only)
    mesh = build_mesh(device=device, data_parallel=shapes.shard_degree(config))
    laps.done("process_groups")
    data = build_data(config, dp_rank=mesh.get_local_rank(), log=print)
    spec = get(config.model.name)
    model = _model(config, spec, data, mesh=mesh, device=device)
    optimizer = _optimizer(config, model)
    reducer = _reducer(config, place, model, failpoints)
    laps.done("model")
    server = StateServer(
        host=connection.host,
        secret=secret_key(),
        tls=connection.tls,
        rate_limit=config.fault_tolerance.transfer_rate_limit,
        failpoint=failpoints,
    )
    seat = _seat(config, place, connection, device=device, transfer=server.address, failpoints=failpoints)
    laps.done("process_groups")
    compute = Compute(
        group=place.group,
        rank=place.rank,
        seed=config.debug.seed,
        model=model,
        device=device,
        loader=data.loader,
        reducer=reducer,
        seat=seat,
        phases=phases,
        failpoint=failpoints,
        at_microbatch=failpoints.at_microbatch,
    )
    connection.vitals.standing = lambda: (seat.attempt, *phases.standing)
    phases.enter(Phase.REHEARSE)
    rehearse(config, connection, data, compute, reducer, device=device)
    laps.done("rehearse")
    state = _state(config, place, connection, spec, data, model, optimizer, server, phases, failpoints, sink, run)
    if place.rank == 0:
        keep_tokenizer(run.tokenizer, trained=data.store.tokenizer, assets=config.model.hf_assets_path)
    laps.done("model")
    announce(place, sink, config, connection, laps)
    parts = Parts(
        group=place.group,
        rank=place.rank,
        steps=config.training.steps,
        max_norm=config.training.max_norm,
        digest_interval=config.debug.digest_interval,
        nonfinite_limit=1 if config.training.nonfinite == "stop" else config.training.nonfinite_limit,
        shape=_shape(config, data),
        model=model,
        params=[p for p in model.parameters() if p.requires_grad],
        optimizer=optimizer,
        schedule=schedule_of(config),
        loader=data.loader,
        reducer=reducer,
        compute=compute,
        sentinel=Sentinel(state.tensors, group=place.group, seat=seat, digest=state.digest, enabled=state.sentinel),
        seat=seat,
        signals=connection.signals,
        phases=phases,
        failpoints=failpoints,
        sink=sink,
        vitals=connection.vitals,
        report_end=functools.partial(_report_end, connection),
    )
    return parts, state


def _init_group(place: Place, store: Store, *, device: torch.device, timeout_s: float) -> None:
    dist.init_process_group(
        backend_for(device),
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device if device.type != "cpu" else None,
    )


def _model(config: Config, spec: ModelSpec[Any], data: Data, *, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    with torch.device("meta"):
        model = spec.build(
            spec.flavor(config.model.flavor),
            seq_len=config.training.seq_len,
            vocab_size=_vocabulary(config, data),
        )
    model.to(_DTYPES[config.training.dtype])
    shard(
        model,
        blocks=spec.blocks(model),
        mesh=mesh,
        param_dtype=_DTYPES[config.training.mixed_precision_param],
        reduce_dtype=_DTYPES[config.training.mixed_precision_reduce],
        reshard_after_forward=config.parallelism.fsdp_reshard_after_forward != "never",
    )
    model.to_empty(device=device)
    spec.init_weights(model, seed=config.debug.seed)
    model.train()
    return model


def _vocabulary(config: Config, data: Data) -> int | None:
    """A tokenizer of our own decides the vocabulary; a published one comes with the published shape."""
    return None if config.model.hf_assets_path else data.store.vocab_size


def _optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """With its state already there, so that a group can be healed or restored before its first step."""
    optimizer = build_optimizer(
        model.parameters(),
        name=config.optimizer.name,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.eps,
        weight_decay=config.optimizer.weight_decay,
        implementation=config.optimizer.implementation,
    )
    ensure_optimizer_state(optimizer)
    return optimizer


def _reducer(config: Config, place: Place, model: nn.Module, failpoints: Failpoints) -> GradientReducer:
    reducer = GradientReducer(
        model,
        how=precision(
            reduction=config.fault_tolerance.reduction,
            bits=config.fault_tolerance.fixed_point_bits,
            microbatches=shapes.microbatches(config),
            ranks=place.world,
        ),
        bucket_bytes=config.fault_tolerance.bucket_bytes,
        failpoint=failpoints,
    )
    failpoints.poison = reducer.poison_next
    failpoints.flip = lambda: flip_bit(
        (local(p) for p in model.parameters()), where=f"{place.group}/{place.rank}/{failpoints.step}"
    )
    return reducer


def _state(
    config: Config,
    place: Place,
    connection: Connection,
    spec: ModelSpec[Any],
    data: Data,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    server: StateServer,
    phases: Phases,
    failpoints: Failpoints,
    sink: EventSink,
    run: RunFolder,
) -> StateKeeper:
    tensors = closed_list([model], [optimizer])

    from_folder = hf_start(config, spec, tensors, tokenizer=data.store.tokenizer) or checkpoint_start(
        config, tensors, group=cpu_group(), secret=secret_key(), spool=run.root / "spool" / f"{place.group}-initial"
    )
    writer = f"{place.group}.{connection.incarnation}"

    def from_seed() -> str | None:
        spec.init_weights(model, seed=config.debug.seed)
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name.startswith("optim."):
                    tensor.zero_()
        return from_folder() if from_folder is not None else None

    digest = state_digest_of(config, data=data.store.digest)
    scratch = Clocks(step=0, quorum_id=0, cursor=0, tokens=0, seed=config.debug.seed, config_digest=digest)
    return StateKeeper(
        group=place.group,
        rank=place.rank,
        clocks=scratch,
        tensors=tensors,
        from_seed=from_seed,
        scratch=scratch,
        disk=build_disk(
            config,
            place,
            run=run,
            incarnation=connection.incarnation,
            config_digest=digest,
            secret=secret_key(),
            sink=sink,
            failpoint=failpoints,
        ),
        server=server,
        fetch=functools.partial(
            fetch,
            secret=secret_key(),
            tls=connection.tls,
            stall_s=connection.timeouts.transfer_stall_s,
            failpoint=failpoints,
        ),
        digest_group=cpu_group(),
        beside=connection.beside,
        signals=connection.signals,
        phases=phases,
        failpoint=failpoints,
        sink=sink,
        sentinel=config.fault_tolerance.divergence_check,
        patience_s=connection.timeouts.failure_detection_s,
        export=last_export(config, spec, tensors, run=run, writer=writer, secret=secret_key(), sink=sink),
    )


def _seat(
    config: Config,
    place: Place,
    connection: Connection,
    *,
    device: torch.device,
    transfer: str,
    failpoints: Failpoints,
) -> Seat:
    timeouts = connection.timeouts
    limits = Limits(
        quorum_s=timeouts.quorum_timeout_s,
        connect_s=timeouts.collective_timeout_s,
        collective_s=timeouts.collective_timeout_s,
        vote_s=timeouts.collective_timeout_s,
    )
    doors: list[Any] = [None] * place.world
    dist.all_gather_object(doors, transfer)
    manager_address: list[Any] = [None]
    if place.rank == 0:
        seat_store, store_address = serve_seat_store(host=connection.host, timeout_s=limits.connect_s)
        manager = serve_manager(
            group=place.group,
            incarnation=connection.incarnation,
            lighthouse=connection.door(),
            host=connection.host,
            store_address=store_address,
            world=place.world,
            limits=limits,
        )
        _KEPT.extend((seat_store, manager))
        manager_address = [manager.address()]
    dist.broadcast_object_list(manager_address, src=0)
    wanted = config.fault_tolerance.process_group
    return Seat(
        group=place.group,
        incarnation=connection.incarnation,
        rank=place.rank,
        world=place.world,
        backend=("gloo" if device.type == "cpu" else "nccl") if wanted == "auto" else wanted,
        manager_address=manager_address[0],
        signals=connection.signals,
        beside=connection.beside,
        limits=limits,
        coordinator=connection.control,
        hub=connection.hub,
        failpoint=failpoints,
        transfer=tuple(doors),
    )


_KEPT: list[object] = []
"""Servers that must live as long as the process, though nobody calls them again."""


def _shape(config: Config, data: Data) -> BatchShape:
    per_group = config.fault_tolerance.batch == "per_group"
    return BatchShape(
        microbatches=shapes.microbatches(config),
        samples=shapes.microbatch_samples(config),
        seq_len=config.training.seq_len,
        total=data.total,
        per_group=shapes.microbatches_per_group(config) if per_group else None,
    )


def _report_end(connection: Connection, lineage: Lineage) -> None:
    if connection.control is not None:
        connection.control.report(connection.group, connection.incarnation, ended=lineage)
