"""``phalanx checkpoint to-hf STEP_FOLDER OUT_FOLDER``."""

from __future__ import annotations

import argparse

from configs.secret import secret_key
from ops.checkpoint_where import HELP, METAVAR, step_at
from ops.console import Console
from ops.conversion import conversion, local_path, place
from ops.result import Result

_MOST_GB = 1_000_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """A checkpoint, a folder, and what cannot be read from what lies around the checkpoint."""
    parser.add_argument("step_folder", metavar=METAVAR, type=place, help=HELP)
    parser.add_argument(
        "out", metavar="OUT_FOLDER", type=local_path, help="the model folder to write; it must not exist"
    )
    parser.add_argument(
        "--export-dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of the weights written (default: the checkpoint's own)",
    )
    parser.add_argument("--model", help="the model (default: what the run's config or the import says)")
    parser.add_argument("--flavor", help="its flavor (the same)")
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", type=local_path, help="folder with tokenizer files (default: the run's)"
    )
    parser.add_argument(
        "--max-file-gb", metavar="GB", type=_size, default=5.0, help="largest file of weights in GB (default: 5)"
    )


def run(options: argparse.Namespace, console: Console) -> Result:
    """Convert. Exit 2 for paths and names that cannot be used, 6 for a checkpoint that does not verify."""
    with step_at(options.step_folder) as step_folder, conversion():
        from checkpointing.hf_format import EXPORT_DTYPES  # heavy: torch
        from trainer.convert import to_hf

        data = to_hf(
            step_folder,
            options.out,
            model=options.model,
            flavor=options.flavor,
            tokenizer=options.tokenizer,
            dtype=EXPORT_DTYPES[options.export_dtype] if options.export_dtype else None,
            limit=int(options.max_file_gb * 1e9),
            secret=secret_key(),
            progress=console.say,
        )
    tokenizer = "" if data["tokenizer"] else "; no tokenizer was found: --tokenizer FOLDER adds one"
    return Result(text=f"{options.out}: {data['bytes'] / 1e6:,.1f} MB of weights{tokenizer}", data=data)


def _size(text: str) -> float:
    value = float(text)
    if not 1e-9 <= value <= _MOST_GB:  # NaN is not
        raise argparse.ArgumentTypeError(f"expected a number of GB above 0 and at most {_MOST_GB:,}")
    return value
