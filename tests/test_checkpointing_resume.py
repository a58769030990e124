"""Reading checkpoints back: the newest that verifies wins; what is passed over has a reason, and so has an end."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from checkpointing.errors import BadCheckpoint, CheckpointError, NothingThere
from checkpointing.manifest import MANIFEST, METADATA, File, encode, file_digest, read_manifest
from checkpointing.resume import Found, Resume, Source, decide_resume, load, offers, survey, verify
from checkpointing.tools import list_checkpoints, to_torch
from checkpointing.writer import Checkpointer
from configs.words import SCRATCH, Exit
from tests.support.states import clocks, flip, lineage, names, same, tensors

CONFIG = "c0ffee"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Checkpoints of steps 1 to 3."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    saver = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=0)
    saver.start()
    for step in (1, 2, 3):
        saver.finish(tensors=tensors(step), clocks=clocks(step))
    assert saver.close(wait_s=30)
    return folder


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(written, tmp_path / "checkpoints"))


def step_folder(folder: Path, step: int) -> Path:
    return folder / lineage(step).folder


def load_step(folder: Path, step: int, into: dict[str, torch.Tensor] | None = None, **options):
    into = {n: torch.full_like(t, 99) for n, t in tensors(0).items()} if into is None else into
    return load(step_folder(folder, step), into, group=None, secret=None, **options), into


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def edit_manifest(path: Path) -> None:
    body = json.loads(path.read_text())
    body["clocks"]["cursor"] += 1
    path.write_text(json.dumps(body))


DAMAGE = {
    "no metadata": (lambda p: (p / METADATA).unlink(), r"\.metadata is missing"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), "no manifest.json"),
    "zero-byte shard": (lambda p: (p / "__0_0.distcp").write_bytes(b""), "has 0 bytes instead of"),
    "truncated shard": (lambda p: truncate(p / "__0_0.distcp"), r"__0_0\.distcp has \d+ bytes instead of"),
    "flipped byte in a shard": (lambda p: flip(p / "__0_0.distcp", 5000), r"__0_0\.distcp is damaged"),
    "flipped byte in metadata": (lambda p: flip(p / METADATA), r"\.metadata is damaged"),
    "truncated manifest": (lambda p: truncate(p / MANIFEST), "cannot be read"),
    "edited manifest": (lambda p: edit_manifest(p / MANIFEST), "its seal does not fit"),
    "another state's folder": (
        lambda p: shutil.copytree(p.parent / lineage(1).folder, p, dirs_exist_ok=True),
        "named 3",
    ),
    "empty folder": (lambda p: (shutil.rmtree(p), p.mkdir()), "no manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_is_passed_over_with_its_reason(folder, damage):
    harm, reason = DAMAGE[damage]
    harm(step_folder(folder, 3))
    seen = survey(folder, secret=None)
    assert [found.lineage for found in seen.found] == [lineage(2), lineage(1)]
    assert seen.found[0].verified
    (passed,) = seen.passed_over
    assert passed.name == lineage(3).folder
    with pytest.raises(BadCheckpoint, match=reason) as error:
        verify(step_folder(folder, 3), secret=None)
    assert passed.reason == str(error.value)
    untouched = {n: torch.full_like(t, 99) for n, t in tensors(0).items()}
    with pytest.raises(CheckpointError, match=reason):
        load_step(folder, 3, untouched)
    assert all(tensor.eq(99).all() for tensor in untouched.values())
    chosen, why = offers(seen, config_digest=CONFIG)
    assert chosen[0].lineage == lineage(2)
    assert lineage(3).folder in why
    assert same(load_step(folder, 2)[1], tensors(2))


def test_a_leftover_temporary_name_is_no_checkpoint(folder):
    step_folder(folder, 3).rename(folder / f".writing-g0.1-{lineage(3).folder}")
    seen = survey(folder, secret=None)
    assert [found.lineage for found in seen.found] == [lineage(2), lineage(1)]
    assert seen.passed_over == ()


def test_only_the_newest_is_read_in_full(folder):
    flip(step_folder(folder, 1) / "__0_0.distcp", 5000)
    assert [found.verified for found in survey(folder, secret=None).found] == [True, False, False]
    assert len(survey(folder, secret=None, verify_newest=3).found) == 2
    assert [row.valid for row in list_checkpoints(folder, verify_newest=3)] == [True, True, False]
    with pytest.raises(CheckpointError, match="damaged"):
        load_step(folder, 1)


def test_none_valid_among_several_is_an_error_and_an_empty_folder_is_not(folder, tmp_path):
    for step in (1, 2, 3):
        (step_folder(folder, step) / METADATA).unlink()
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint in .* can be used.*00000003.*00000001") as error:
        offers(survey(folder, secret=None), config_digest=CONFIG)
    assert error.value.code is Exit.CHECKPOINT
    assert offers(survey(tmp_path / "none", secret=None), config_digest=CONFIG)[0] == ()


def test_another_config_is_refused_unless_forked(folder):
    seen = survey(folder, secret=None)
    with pytest.raises(CheckpointError, match=r"checkpoint\.fork"):
        offers(seen, config_digest="beef")
    assert offers(seen, config_digest="beef", fork=True)[0] == seen.found


def test_a_wanted_step_must_exist_and_going_back_is_a_fork(folder, tmp_path):
    seen = survey(folder, secret=None)
    assert [found.lineage for found in offers(seen, config_digest=CONFIG, load_step=3)[0]] == [lineage(3)]
    for options in ({"load_step": 7}, {"load_step": 0, "fork": True}):
        with pytest.raises(NothingThere, match="holds 3, 2, 1"):  # another group may have it
            offers(seen, config_digest=CONFIG, **options)
    shutil.rmtree(step_folder(folder, 2))
    with pytest.raises(CheckpointError, match="to go back on purpose") as error:
        offers(survey(folder, secret=None), config_digest=CONFIG, load_step=2)  # whoever has it
    assert not isinstance(error.value, NothingThere)
    with pytest.raises(CheckpointError, match="to go back on purpose"):
        offers(seen, config_digest=CONFIG, load_step=2)
    assert offers(seen, config_digest=CONFIG, load_step=2, fork=True)[0][0].lineage == lineage(2)
    with pytest.raises(NothingThere, match="holds no checkpoint"):
        offers(survey(tmp_path / "none", secret=None), config_digest=CONFIG, load_step=2)


def test_a_rolled_back_branch_is_passed_over(folder):
    saver = Checkpointer(folder, group=None, writer="g0.1", keep_latest_k=0)
    saver.start()
    saver.finish(tensors=tensors(2), clocks=clocks(2, running=9))
    saver.close(wait_s=30)
    shutil.copytree(folder / f".aside-{lineage(3).folder}", step_folder(folder, 3))  # a paused writer published late
    seen = survey(folder, secret=None)
    assert [found.lineage for found in seen.found] == [lineage(2, 9), lineage(1)]
    assert "rolled back" in seen.passed_over[0].reason


def test_the_decision_is_one_of_four_with_its_reason(folder):
    found: tuple[Found, ...] = survey(folder, secret=None).found

    def decide(**changes):
        return decide_resume(**{"current": lineage(3), "healing": False, "restore": None, "found": found, **changes})

    assert decide(healing=True)[0] == Resume(Source.PEER, lineage(3))
    assert decide()[0] == Resume(Source.OWN, lineage(3))
    assert decide(restore=SCRATCH)[0] == Resume(Source.SCRATCH, SCRATCH)
    assert decide(restore=lineage(2))[0] == Resume(Source.DISK, lineage(2), step_folder(folder, 2))
    assert all(reason for _, reason in (decide(), decide(healing=True), decide(restore=lineage(2))))
    with pytest.raises(CheckpointError, match="not on this group's disk"):
        decide(restore=lineage(8))


def test_missing_and_extra_keys_and_other_shapes_are_listed(folder):
    other = tensors(0)
    other["model.renamed"] = other.pop("model.half")
    other["model.weight"] = torch.zeros(40, 6)
    other["model.nothing"] = torch.empty(0, 3, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError) as error:
        load_step(folder, 3, other)
    for part in (
        "missing in the checkpoint: model.renamed",
        "only in the checkpoint: model.half",
        "model.weight is float32[40, 5], the model has float32[40, 6]",
        "model.nothing is float32[0, 3], the model has bfloat16[0, 3]",
    ):
        assert part in error.value.reason
    without = {name: tensor for name, tensor in tensors(0).items() if not name.startswith("optim.")}
    with pytest.raises(CheckpointError, match=r"only in the checkpoint: optim\.weight\.exp_avg"):
        load_step(folder, 3, dict(without))
    load_step(folder, 3, without, skip=("optim.",))
    assert torch.equal(without["model.weight"], tensors(3)["model.weight"])


class Marker:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


def test_a_pickle_is_not_opened_before_its_digest_is_verified(folder, tmp_path):
    marker = tmp_path / "opened"
    path = step_folder(folder, 3)
    (path / METADATA).write_bytes(pickle.dumps(Marker(str(marker))))
    with pytest.raises(CheckpointError):
        load_step(folder, 3)
    (path / "DAMAGED.txt").unlink(missing_ok=True)
    size = (path / METADATA).stat().st_size
    manifest = read_manifest(path, secret=None)
    forged = {**manifest.files, METADATA: File(size, "0" * 64)}  # the size fits, the digest does not
    (path / MANIFEST).write_bytes(encode(type(manifest)(**{**vars(manifest), "files": forged}), secret=None))
    with pytest.raises(CheckpointError, match="damaged"):
        load_step(folder, 3)
    with pytest.raises(CheckpointError, match="damaged"):
        to_torch(path, tmp_path / "out.pt")
    assert not marker.exists()
    (path / "DAMAGED.txt").unlink(missing_ok=True)
    forged[METADATA] = File(size, file_digest(path / METADATA, secret=None))
    (path / MANIFEST).write_bytes(encode(type(manifest)(**{**vars(manifest), "files": forged}), secret=None))
    with pytest.raises(CheckpointError, match="cannot be loaded"):  # and this shows that the test can see an opening
        load_step(folder, 3)
    assert marker.exists()


def test_listing_names_every_checkpoint(folder):
    truncate(step_folder(folder, 2) / "__0_0.distcp")
    rows = list_checkpoints(folder)
    assert [(row.name, row.valid, row.step) for row in rows] == [
        (lineage(3).folder, True, 3),
        (lineage(1).folder, True, 1),
        (lineage(2).folder, False, 2),
    ]
    assert rows[0].lineage == "3:17.3"
    assert rows[0].writer == "g0.1"
    assert (rows[0].bytes or 0) > 1000
    assert "bytes instead of" in rows[2].reason
    assert list_checkpoints(folder / "none") == []


def test_to_torch_gives_whole_tensors_by_plain_names(folder, tmp_path):
    out = tmp_path / "out.pt"
    to_torch(step_folder(folder, 3), out)
    model = torch.load(out, weights_only=True)["model"]
    assert same(model, {n.removeprefix("model."): t for n, t in tensors(3).items() if n.startswith("model.")})
    with pytest.raises(FileExistsError):
        to_torch(step_folder(folder, 3), out)
    assert names(tmp_path) == ["checkpoints", "out.pt"]


def test_the_stock_converter_reads_our_folders(folder, tmp_path):
    out = tmp_path / "stock.pt"
    command = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    subprocess.run([*command, str(step_folder(folder, 3)), str(out)], check=True, capture_output=True, timeout=120)
    assert same(dict(sorted(torch.load(out, weights_only=True).items())), dict(sorted(tensors(3).items())))
