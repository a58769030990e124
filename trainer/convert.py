"""Checkpoints to and from the folders of others, for the command line. One process, one tensor in memory at a time.

A checkpoint does not say which model it is of. For a run's the run's ``config.toml`` does, for an imported one the
``flavor.json`` that the import left in it; both can be overruled. Folders appear whole or not at all, and nothing is
written over.
"""

from __future__ import annotations

import contextlib
import math
import os
import reprlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from checkpointing.errors import CheckpointError
from checkpointing.hf_format import CONFIG, FILE_LIMIT, Progress, SafetensorsFolder, read_config, write_json
from checkpointing.manifest import Key
from checkpointing.opened import OpenCheckpoint, write_seed
from checkpointing.original_format import OriginalWeights, read_params
from checkpointing.plain import read_object
from checkpointing.weights import WeightMap, WeightSource, check_fit, read_whole
from configs.load import parse_text
from configs.run_folder import RunFolder
from trainer.data.assets import copy_tokenizer, has_tokenizer
from trainer.data.tokenizer import FILE as TOKENIZER
from trainer.hf_folder import Described, context_length, exchange_of, write_model_folder
from trainer.models.registry import ModelSpec, get

FLAVOR_FILE = "flavor.json"
ASSETS = "assets"
"""Folder of an imported checkpoint with the tokenizer files that came with the weights."""
_DEEP = 4
"""Folders above a checkpoint in which its run's config is looked for: checkpoint.folder may have several parts."""


def to_hf(
    step_folder: Path,
    out: Path,
    *,
    model: str | None = None,
    flavor: str | None = None,
    tokenizer: Path | None = None,
    dtype: torch.dtype | None = None,
    limit: int = FILE_LIMIT,
    secret: bytes | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Write a checkpoint's weights as a model folder ``out``: what was written, for a report.

    ``dtype`` None is the checkpoint's own. Raises CheckpointError for a checkpoint that does not verify or whose model
    is not known, ValueError for an unknown model or flavor, DataError for a broken tokenizer, OSError.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; it is not written over")
    opened = OpenCheckpoint(step_folder, secret=secret)
    described = _describe(step_folder, opened.weights, model=model, flavor=flavor, tokenizer=tokenizer)
    keys = opened.weights
    with _building(out) as folder:
        size = write_model_folder(
            folder,
            described,
            ((name, opened.read(name)) for name in keys),
            dtypes={name: getattr(torch, key.dtype) for name, key in keys.items()},
            dtype=dtype,
            limit=limit,
            progress=progress,
        )
        files = sorted(path.name for path in folder.iterdir())
    step, written = opened.manifest.clocks.step, dtype or getattr(torch, next(iter(keys.values())).dtype)
    return {
        "out": str(out),
        "bytes": size,
        "step": step,
        "dtype": str(written).removeprefix("torch."),
        "files": files,
        "tokenizer": TOKENIZER in files,
    }


def import_weights(
    kind: Literal["hf", "original"],
    folder: Path,
    out: Path,
    *,
    model: str,
    flavor: str,
    secret: bytes | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Make a checkpoint ``out`` to start from: what was written, for a report.

    Raises CheckpointError that lists what does not fit, ValueError for an unknown model or flavor, OSError.
    """
    spec = get(model)
    source, pairs, args, seq_len = (open_hf if kind == "hf" else open_original)(folder, spec, flavor)
    by_name = {weight.name: weight for weight in pairs.weights}
    total = sum(math.prod(weight.shape) for weight in pairs.weights)
    done = 0

    def read(name: str) -> torch.Tensor:
        nonlocal done
        found = read_whole(source, by_name[name])
        done += found.numel()
        progress(f"{done / total:4.0%}  {name}")
        return found

    manifest = write_seed(
        out,
        {weight.name: weight.shape for weight in pairs.weights},
        read,
        writer=f"from-{kind}",
        secret=secret,
        beside=lambda building: leave_beside(building, folder, model=model, flavor=flavor, seq_len=seq_len),
    )
    parameters = spec.num_params(args)
    return {"out": str(out), "bytes": manifest.bytes, "tensors": len(manifest.keys), "parameters": parameters}


def open_hf(
    folder: Path, spec: ModelSpec[Any], flavor: str, *, args: Any = None
) -> tuple[WeightSource, WeightMap, Any, int]:
    """(weights, their pairing, the model's args, longest context) of a model folder that fits the flavor, or ``args``
    where the vocabulary is settled. Raises CheckpointError."""
    exchange = exchange_of(spec)
    config = read_config(folder)
    args = args or _sized(spec, flavor, config.get("vocab_size"))
    _refuse(folder / CONFIG, f"{spec.name} {flavor}", exchange.hf_misfits(args, config))
    source, pairs = SafetensorsFolder(folder), exchange.hf_map(args)
    check_fit(source, pairs)
    return source, pairs, args, _context(folder / CONFIG, config) or exchange.context(args)


def open_original(folder: Path, spec: ModelSpec[Any], flavor: str) -> tuple[WeightSource, WeightMap, Any, int]:
    """The same for original weights, which do not say their longest context."""
    exchange = exchange_of(spec)
    params = read_params(folder)
    args = _sized(spec, flavor, params.get("vocab_size"))
    _refuse(folder / "params.json", f"{spec.name} {flavor}", exchange.original_misfits(args, params))
    pairs = exchange.original_map(args)
    source = OriginalWeights(folder, wholes={weight.theirs: weight.shape for weight in pairs.weights})
    check_fit(source, pairs)
    return source, pairs, args, exchange.context(args)


def _context(where: Path, config: Mapping[str, Any]) -> int | None:
    """The longest context, where a description says it. Raises CheckpointError when it says something else there."""
    found = config.get("max_position_embeddings")
    if found is None:
        return None
    if type(found) not in (int, float) or not 0 <= found < 1 << 53 or found != int(found):  # NaN and infinity are not
        expected = "expected a whole number of tokens"
        raise CheckpointError(f"{where}: max_position_embeddings is {reprlib.repr(found)}, {expected}")
    return int(found)


def _sized(spec: ModelSpec[Any], flavor: str, vocab_size: Any) -> Any:
    """The flavor with the vocabulary that a description names; -1 and absence leave the flavor's own."""
    args = spec.flavor(flavor)
    known = type(vocab_size) is int and vocab_size > 0
    return exchange_of(spec).fitted(args, vocab_size=vocab_size) if known else args


def _refuse(where: Path, what: str, problems: list[str]) -> None:
    if problems:
        raise CheckpointError(f"{where} describes another model than {what}: " + "; ".join(problems))


def _describe(
    step_folder: Path, keys: Mapping[str, Key], *, model: str | None, flavor: str | None, tokenizer: Path | None
) -> Described:
    """Which model a checkpoint is of. Raises CheckpointError when nothing says so, or what says so does not fit."""
    said = _said(step_folder)
    name, chosen = model or said.get("model"), flavor or said.get("flavor")
    if name is None or chosen is None:
        raise CheckpointError(
            f"{step_folder}: no run's config.toml above it and no {FLAVOR_FILE} in it; say --model and --flavor"
        )
    spec = get(name)
    exchange = exchange_of(spec)
    shapes = {name: key.shape for name, key in keys.items()}
    try:
        args = exchange.fitted(spec.flavor(chosen), vocab_size=exchange.vocab_size(shapes))
    except KeyError as error:
        raise CheckpointError(f"{step_folder} is not of {name} {chosen}: it has no {error}") from None
    seq_len = int(said.get("seq_len") or exchange.context(args))
    return Described(spec=spec, args=args, seq_len=seq_len, tokenizer=tokenizer or said.get("tokenizer"))


def _said(step_folder: Path) -> dict[str, Any]:
    """What lies around a checkpoint about its model: model, flavor, seq_len, tokenizer."""
    beside = step_folder / FLAVOR_FILE
    if beside.exists():
        try:
            found = read_object(beside)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{beside} cannot be read: {error}") from None
        for name, kind in (("model", str), ("flavor", str), ("seq_len", int)):
            if type(found.get(name)) is not kind:
                raise CheckpointError(f"{beside}: {name} is {reprlib.repr(found.get(name))}, expected {kind.__name__}")
        return {**found, "tokenizer": step_folder / ASSETS}
    for parent in list(step_folder.absolute().parents)[:_DEEP]:
        run = RunFolder(parent)
        if run.config.exists():
            config = parse_text(run.config.read_text(), where=str(run.config))
            assets = config.model.hf_assets_path
            kept = run.tokenizer if has_tokenizer(run.tokenizer) else None
            return {
                "model": config.model.name,
                "flavor": config.model.flavor,
                "seq_len": context_length(assets, trained=config.training.seq_len),
                "tokenizer": kept or (Path(assets).expanduser() if assets else None),
            }
    return {}


def leave_beside(building: Path, source: Path | None, *, model: str, flavor: str, seq_len: int) -> None:
    """What an export of this checkpoint of weights alone must know, and the tokenizer of the folder ``source``."""
    write_json(building / FLAVOR_FILE, {"model": model, "flavor": flavor, "seq_len": seq_len})
    if source is not None and (source / TOKENIZER).is_file():  # Meta's tokenizer.model alone is in a format of its own
        (building / ASSETS).mkdir()
        copy_tokenizer(source, building / ASSETS)


@contextlib.contextmanager
def _building(out: Path) -> Iterator[Path]:
    """A new folder beside ``out`` that takes its name when all went well."""
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        yield building
        building.rename(out)
    finally:
        shutil.rmtree(building, ignore_errors=True)
