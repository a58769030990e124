"""Which tokenizer files belong beside exported weights, and how does a run keep its tokenizer?

A published tokenizer is copied file by file as it came. One that was trained here is a bare ``tokenizer.json``; it gets
the small ``tokenizer_config.json`` that ``transformers.AutoTokenizer`` needs. Every run keeps a copy in its folder, so
an export needs neither the cache nor the data. Special tokens are found as ``tokenizer.from_assets`` finds them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpointing.plain import read_object, read_regular
from trainer.data.tokenizer import FILE, from_assets

CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"
FILES = (
    FILE,
    CONFIG,
    GENERATION,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""All there is to a tokenizer in a Hugging Face folder, by name."""


@dataclasses.dataclass(frozen=True)
class Special:
    """Ids for ``config.json`` and ``generation_config.json``; None where the tokenizer has no such token."""

    bos: int | None
    eos: int | None


def has_tokenizer(folder: Path) -> bool:
    """Whether there is something to copy."""
    return any((folder / name).is_file() for name in (FILE, "tokenizer.model"))


def copy_tokenizer(source: Path, out: Path) -> Special:
    """Copy every tokenizer file of ``source`` into the folder ``out`` and write what is missing. Raises OSError, and
    DataError for a ``tokenizer.json`` that is none."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    special = Special(None, None)
    if (out / FILE).exists():
        found = from_assets(str(out))
        special = Special(found.bos, found.eos)
        if not (out / CONFIG).exists():
            (out / CONFIG).write_text(json.dumps(_config(out / FILE, special), indent=2) + "\n")
    return special


def same_tokenizer(a: Path, b: Path) -> bool:
    """Whether two ``tokenizer.json`` make the same tokens of a text, however they are laid out. Raises OSError, and
    ValueError for a file that is none."""
    if read_regular(a) == read_regular(b):
        return True
    found = [read_object(path) for path in (a, b)]
    return _meaning(found[0]) == _meaning(found[1])


def keep_tokenizer(folder: Path, *, trained: Path, assets: str | None) -> None:
    """Leave a copy of a run's tokenizer in ``folder``, whole or not at all; one that is there stays.

    ``trained`` is the file that was trained on the run's text, ``assets`` the folder of a published one, if that is
    used. A folder that cannot be written is no error: a run does not need the copy, exports say that they have none.
    Raises DataError.
    """
    if folder.exists():
        return
    building = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        copy_tokenizer(Path(assets).expanduser() if assets else trained.parent, building)
        building.rename(folder)
    except OSError as error:
        if not folder.exists():  # else another group was faster
            print(f"the tokenizer could not be kept in {folder}: {error}")
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _meaning(found: dict[str, Any]) -> dict[str, Any]:
    """Without what fits sequences into batches, and with the two ways of writing a merge made one."""
    kept = {name: value for name, value in found.items() if name not in ("version", "truncation", "padding")}
    model = kept.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        merges = [" ".join(merge) if _is_pair(merge) else merge for merge in model["merges"]]
        kept["model"] = {**model, "merges": merges}
    return kept


def _is_pair(merge: Any) -> bool:
    return isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)


def _config(file: Path, special: Special) -> dict[str, Any]:
    """``tokenizer_config.json`` for a bare tokenizer file. Its class takes ``tokenizer.json`` as it is; without one
    named, ``transformers`` would guess one from the model and build another tokenizer."""
    tokenizer = Tokenizer.from_file(str(file))
    named = {"bos_token": special.bos, "eos_token": special.eos}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: tokenizer.id_to_token(token) for name, token in named.items() if token is not None},
    }
