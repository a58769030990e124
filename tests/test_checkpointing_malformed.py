"""A manifest or a note that anybody may have written is passed over by name, with the reason; nothing waits or dies."""

from __future__ import annotations

import json
import logging
import os

import pytest

from checkpointing import manifest
from checkpointing.chosen import NOTE, met, noted, remember
from checkpointing.manifest import MANIFEST
from checkpointing.resume import survey
from configs.words import Exit
from ops.__main__ import main
from tests.support.states import lineage
from tests.support.weights import drawn, saved, shaped

DEEP = "[" * 200_000


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints; the newer one's manifest is to be spoiled."""
    for step in (6, 7):
        saved(tmp_path / "checkpoints", drawn(shaped()), step=step)
    return tmp_path / "checkpoints"


def resealed(path, **changes):
    """The manifest with other values under a seal that fits."""
    body = json.loads(path.read_text())
    del body["seal"]
    body |= changes
    path.write_text(json.dumps({**body, "seal": manifest._seal(body, None)}))


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def resized(path, **changes):
    files = json.loads(path.read_text())["files"]
    files["__0_0.distcp"] |= changes
    resealed(path, files=files)


def renamed(path, name):
    files = json.loads(path.read_text())["files"]
    resealed(path, files={**files, name: files["__0_0.distcp"]})


def unreadable_shard(path):
    fifo(path.with_name("__0_0.distcp"))
    resized(path, size=0)


SPOILT = {
    "nested": (lambda path: path.write_text(DEEP), "nested too deeply"),
    "nested inside": (lambda path: path.write_text('{"format": ' + DEEP), "nested too deeply"),
    "FIFO": (fifo, "no regular file"),
    "files": (lambda path: resealed(path, files=[]), "files is no table"),
    "keys": (lambda path: resealed(path, keys=["model.norm.weight"]), "keys is no table"),
    "a key": (lambda path: resealed(path, keys={"model.x": 3}), "'model.x' is not [dtype, shape]"),
    "a dtype": (lambda path: resealed(path, keys={"model.x": ["load", [1]]}), "no dtype 'load'"),
    "a shape": (lambda path: resealed(path, keys={"model.x": ["float32", [-1]]}), "the shape of 'model.x'"),
    "clocks": (lambda path: resealed(path, clocks=[]), "clocks: missing or unknown keys"),
    "a late year": (lambda path: resealed(path, written=1e300), "written is 1e+300"),
    "no time": (lambda path: resealed(path, written=float("nan")), "written is nan"),
    "writer": (lambda path: resealed(path, writer=None), "writer is no text"),
    "checksum": (lambda path: resealed(path, checksum="x"), "checksum is no whole number"),
    "a size": (lambda path: resized(path, size=1.5), "the size of '__0_0.distcp'"),
    "a digest": (lambda path: resized(path, digest="ü" * 64), "'__0_0.distcp' has no digest"),
    "a name": (lambda path: renamed(path, "a\0b"), "no file's name"),
    "a seal": (lambda path: path.write_text(path.read_text().replace('"seal": "', '"seal": "ü')), "seal does not fit"),
    "a shard that waits": (unreadable_shard, "__0_0.distcp is missing"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_malformed_manifest_is_passed_over_by_name_and_an_older_checkpoint_is_taken(folder, kind, capfd):
    spoil, reason = SPOILT[kind]
    newest = folder / lineage(7).folder
    spoil(newest / MANIFEST)
    seen = survey(folder, secret=None)
    assert [found.lineage for found in seen.found] == [lineage(6)]
    (passed,) = seen.passed_over
    assert passed.name == newest.name
    assert reason in passed.reason

    assert main(["checkpoint", "ls", str(folder)]) == Exit.DONE
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].startswith(newest.name)
    assert reason in lines[1]
    for given in (folder, newest):
        assert main(["checkpoint", "verify", str(given)]) == Exit.CHECK_FAILED
        said = "".join(capfd.readouterr())
        assert f"{newest.name}  BAD: " in said
        assert reason in said


def test_a_note_of_damage_that_cannot_be_read_is_none(folder):
    fifo_at = folder / lineage(7).folder / "DAMAGED.txt"
    os.mkfifo(fifo_at)
    assert len(survey(folder, secret=None).found) == 2
    fifo_at.unlink()
    fifo_at.write_bytes(b"\xff it is damaged")
    assert "it is damaged" in survey(folder, secret=None).passed_over[0].reason


@pytest.mark.parametrize("text", [DEEP, "[]", '{"load_step": 5}', '{"load_step": 5, "newest": 5}', "\0"])
def test_a_note_of_a_chosen_step_that_is_malformed_is_named_and_written_anew(tmp_path, text, caplog):
    (tmp_path / NOTE).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert not met(tmp_path, 5, [lineage(6)])
        assert not noted(tmp_path, 5)
    assert f"{tmp_path / NOTE} is passed over: " in caplog.text
    remember(tmp_path, 5, [lineage(6)])
    assert noted(tmp_path, 5)


def test_a_note_that_is_no_file_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / NOTE)
    assert not met(tmp_path, 5, [lineage(6)])
    remember(tmp_path, 5, [lineage(6)])
    assert noted(tmp_path, 5)
