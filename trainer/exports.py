"""What does a run leave for others once its last state is published? A model folder, or the weights alone.

``checkpoint.last_save_in_hf`` makes ``exports/step-...`` a Hugging Face folder, ``checkpoint.last_save_model_only``
(without the other) a checkpoint of the weights alone; both in ``checkpoint.export_dtype``. It comes after, never
instead of, the full checkpoint: that one is the run's state, from which a greater ``training.steps`` goes on. All ranks
of the group that saves last take part. For a Hugging Face folder rank 0 takes the living state's tensors one by one and
writes; no file is read. A folder that is there already is left alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from checkpointing.errors import CheckpointError
from checkpointing.fellows import Fellows
from checkpointing.folder import Unfinished, clean_up
from checkpointing.gather import whole_tensors
from checkpointing.hf_format import EXPORT_DTYPES
from checkpointing.state import MODEL, Clocks, plain_name
from checkpointing.storage import SaveFailed, write_checkpoint
from configs.run_folder import EventSink, RunFolder
from configs.schema import Config
from configs.words import Lineage
from trainer.convert import leave_beside
from trainer.data.errors import DataError
from trainer.disk import cpu_group
from trainer.hf_folder import Described, context_length, exchange_of, write_model_folder
from trainer.models.registry import ModelSpec

Tensors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(kw_only=True)
class LastExport:
    """The export of one rank. Calling it is collective over ``group``, a gloo group that nothing else uses then."""

    run: RunFolder
    model: Described
    flavor: str
    in_hf: bool
    dtype: torch.dtype
    group: dist.ProcessGroup
    writer: str
    secret: bytes | None
    sink: EventSink

    def __call__(self, tensors: Tensors, clocks: Clocks) -> None:
        """Training thread, with the state's closed list. Raises CheckpointError on every rank when it fails."""
        began = time.monotonic()
        fellows = Fellows(self.group)
        target = self.run.exports / clocks.lineage.folder
        if fellows.first(target.exists()):
            return
        weights = {name: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
        size, failure = (self._model_folder if self.in_hf else self._weights_alone)(weights, clocks, fellows)
        size, failure = fellows.first((size, failure))
        if failure:
            raise CheckpointError(f"the last state could not be exported to {target}: {failure}")
        kind = "hf" if self.in_hf else "model_only"
        seconds = time.monotonic() - began
        self.sink("export", step=clocks.step, kind=kind, folder=str(target), bytes=size, seconds=seconds)

    def _model_folder(self, weights: Tensors, clocks: Clocks, fellows: Fellows) -> tuple[int, str]:
        names = sorted(weight.name for weight in exchange_of(self.model.spec).hf_map(self.model.args).weights)
        whole = ((name.removeprefix(MODEL), tensor) for name, tensor in whole_tensors(weights, fellows))
        size, failure = 0, ""
        if fellows.rank == 0:

            def fill(unfinished: Unfinished) -> int:
                return write_model_folder(
                    unfinished.path, self.model, whole, dtypes=dict.fromkeys(names, self.dtype), dtype=self.dtype
                )

            size, failure = self._published(clocks.lineage, fill)
        for _ in whole:  # the fellows send every tensor, so a failure on rank 0 must not stop it from receiving
            pass
        return size, failure

    def _weights_alone(self, weights: Tensors, clocks: Clocks, fellows: Fellows) -> tuple[int, str]:
        try:
            unfinished, size, _ = write_checkpoint(
                self.run.exports,
                fellows=fellows,
                tensors={name: tensor.detach().to(self.dtype) for name, tensor in weights.items()},
                clocks=clocks,
                writer=self.writer,
                secret=self.secret,
                failpoint=lambda *_, **__: None,
            )
        except SaveFailed as error:
            return 0, str(error)
        if unfinished is None:
            return size, ""

        def fill(unfinished: Unfinished) -> int:
            model = self.model
            leave_beside(
                unfinished.path, model.tokenizer, model=model.spec.name, flavor=self.flavor, seq_len=model.seq_len
            )
            return size

        return self._published(clocks.lineage, fill, unfinished)

    def _published(
        self, lineage: Lineage, fill: Callable[[Unfinished], int], unfinished: Unfinished | None = None
    ) -> tuple[int, str]:
        """Rank 0: fill a folder under a dot-name and give it its name: (bytes, failure)."""
        try:
            for name, reason in clean_up(self.run.exports, writer=self.writer):
                print(f"removed {name}: {reason}")
            unfinished = unfinished or Unfinished(self.run.exports, writer=self.writer, lineage=lineage)
            size = fill(unfinished)
            unfinished.publish()
        except (OSError, CheckpointError, DataError) as error:
            if unfinished is not None:
                unfinished.remove()
            return 0, str(error)
        return size, ""


def last_export(
    config: Config,
    spec: ModelSpec[object],
    tensors: Tensors,
    *,
    run: RunFolder,
    writer: str,
    secret: bytes | None,
    sink: EventSink,
) -> LastExport | None:
    """What the config asks for, if it asks. Collective over the group then."""
    checkpoint = config.checkpoint
    if not checkpoint.enable or not (checkpoint.last_save_in_hf or checkpoint.last_save_model_only):
        return None
    return LastExport(
        run=run,
        model=Described(
            spec=spec,
            args=fitted(config, spec, tensors),
            seq_len=context_length(config.model.hf_assets_path, trained=config.training.seq_len),
            tokenizer=run.tokenizer,
        ),
        flavor=config.model.flavor,
        in_hf=checkpoint.last_save_in_hf,
        dtype=EXPORT_DTYPES[checkpoint.export_dtype],
        group=cpu_group(),
        writer=writer,
        secret=secret,
        sink=sink,
    )


def fitted(config: Config, spec: ModelSpec[object], tensors: Tensors) -> object:
    """The model's args with the vocabulary that its parameters have. Raises CheckpointError for a model without
    exchange."""
    exchange = exchange_of(spec)
    shapes = {plain_name(name).removeprefix(MODEL): tuple(tensor.shape) for name, tensor in tensors.items()}
    return exchange.fitted(spec.flavor(config.model.flavor), vocab_size=exchange.vocab_size(shapes))
