"""``phalanx checkpoint`` on object stores, by URL and by the run that saves there; and what is no checkpoint."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from checkpointing.manifest import MANIFEST
from checkpointing.objects import ObjectPlace
from configs.dump import to_toml
from configs.load import load as load_config
from configs.run_folder import RunFolder
from configs.words import Exit
from ops.__main__ import main
from tests.support.states import flip, lineage
from tests.support.weights import drawn, saved, shaped


def call(capfd, *words):
    """(exit code, the object on stdout)."""
    code = main(["checkpoint", *map(str, words), "--json"])
    data = json.loads(capfd.readouterr().out)
    assert data.pop("exit") == code
    return code, data


class Store:
    """Checkpoints of steps 1 to 4 below a URL: 3 is damaged in one byte, 4 has no manifest yet."""

    def __init__(self, url: str, tmp_path) -> None:
        self.url, self.model = url, drawn(shaped())
        place = ObjectPlace(url, spool=tmp_path / "spool", secret=None)
        self.fs, self.root = place._fs, place._root
        for step in (1, 2, 3, 4):
            saved(tmp_path / "spool", self.model, step=step, place=place)
        data = bytearray(self.fs.cat_file(self.object(3, "__0_0.distcp")))
        data[5000] ^= 1
        self.fs.pipe_file(self.object(3, "__0_0.distcp"), bytes(data))
        self.fs.rm_file(self.object(4, MANIFEST))

    def object(self, step: int, name: str) -> str:
        return f"{self.root}/{lineage(step).folder}/{name}"

    def step(self, step: int) -> str:
        return f"{self.url}/{lineage(step).folder}"


@pytest.fixture
def store(store_url, tmp_path):
    return Store(store_url, tmp_path)


def test_ls_and_verify_read_a_store_and_pass_over_what_is_not_whole(store, capfd):
    code, data = call(capfd, "ls", store.url)
    assert (code, data["folder"]) == (Exit.DONE, store.url)
    rows = {row["step"]: row for row in data["checkpoints"]}
    assert {step: row["valid"] for step, row in rows.items()} == {3: True, 2: True, 1: True, 4: False}
    assert rows[4]["reason"] == "no manifest.json: it is being written, or its writer died"
    assert all(row["bytes"] > 100_000 for row in rows.values())
    code, data = call(capfd, "verify", store.url)
    assert (code, data["bad"]) == (Exit.CHECK_FAILED, 1)
    assert {row["step"]: row["valid"] for row in data["checkpoints"]} == {3: False, 2: True, 1: True}
    assert "__0_0.distcp is damaged" in data["checkpoints"][0]["problems"][0]
    assert call(capfd, "verify", store.step(2))[0] == Exit.DONE
    code, data = call(capfd, "verify", store.step(4))
    assert (code, data["bad"]) == (Exit.CHECK_FAILED, 1)
    assert "no manifest.json" in data["checkpoints"][0]["problems"][0]


def test_weights_come_out_of_a_store(store, capfd, tmp_path):
    out = tmp_path / "weights.pt"
    assert call(capfd, "to-torch", store.step(2), out)[0] == Exit.DONE
    got = torch.load(out, weights_only=True)["model"]
    assert all(torch.equal(tensor, got[name]) for name, tensor in store.model.state_dict().items())
    assert call(capfd, "to-hf", store.step(2), tmp_path / "hf", "--model", "llama3", "--flavor", "tiny")[0] == Exit.DONE
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hf").num_parameters() > 10_000
    code, data = call(capfd, "to-torch", store.step(3), tmp_path / "bad.pt")
    assert code == Exit.CHECKPOINT
    assert data["error"].startswith(store.step(3)), "the store is named, not the copy"
    assert "__0_0.distcp is damaged" in data["error"]
    code, data = call(capfd, "to-hf", store.step(2), tmp_path / "unsaid")
    assert code == Exit.CHECKPOINT
    assert "say --model and --flavor" in data["error"]
    assert not (tmp_path / "unsaid").exists()


@pytest.mark.parametrize("store_url", ["file", "s3"], indirect=True)  # memory would end with the run's process
def test_a_run_whose_config_names_a_store_is_listed_there(store, capfd, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    keys = ["--checkpoint.folder", store.url, "--checkpoint.keep_latest_k", "2"]
    run.config.write_text(to_toml(load_config("debug", keys)))
    code, data = call(capfd, "ls", run.root)
    assert (code, data["folder"]) == (Exit.DONE, store.url)
    assert {row["step"]: row["kept"] for row in data["checkpoints"] if row["valid"]} == {
        3: "number 1 of the newest",
        2: "number 2 of the newest",
        1: "the next save removes it: 2 newer ones are durable",
    }
    assert call(capfd, "verify", run.root)[1]["bad"] == 1
    keys[1] = store.url + "/{group}"
    run.config.write_text(to_toml(load_config("debug", keys)))
    code, data = call(capfd, "ls", run.root)
    assert code == Exit.BAD_CONFIG
    assert "name one: " + keys[1] in data["error"]


def _no_such(tmp_path):
    return tmp_path / "nowhere", Exit.BAD_CONFIG, "nowhere: no such folder"


def _a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    return tmp_path / "file", Exit.BAD_CONFIG, "file: no such folder"


def _something_else(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "else" / name).mkdir(parents=True)
    return tmp_path / "else", Exit.BAD_CONFIG, "is no run folder and holds no checkpoints: no config.toml"


def _bad_config(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("[checkpoint]\nfoldr = 'x'\n")
    return tmp_path / "run", Exit.BAD_CONFIG, "checkpoint.foldr: unknown key (did you mean checkpoint.folder?)"


def _unknown_store(tmp_path):
    reason = "expected a folder, or a URL of memory, file, s3, gs (did you mean file://?)"
    return "fil://store/run", Exit.BAD_CONFIG, reason


@pytest.mark.parametrize("make", [_no_such, _a_file, _something_else, _bad_config, _unknown_store])
def test_what_is_no_folder_of_checkpoints_is_said_with_the_reason(make, capfd, tmp_path):
    given, code, reason = make(tmp_path)
    found, data = call(capfd, "ls", given)
    assert (found, reason in data["error"]) == (code, True), data
    found, data = call(capfd, "verify", given)
    assert found in (code, Exit.CHECKPOINT)
    assert str(given) in data["error"] or reason in data["error"]


def test_a_run_that_has_saved_nothing_is_an_empty_list(capfd, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    run.config.write_text(to_toml(load_config("debug", [])))
    assert call(capfd, "ls", run.root) == (Exit.DONE, {"folder": f"{run.root}/checkpoints", "checkpoints": []})
    (run.root / "checkpoints" / f".writing-g0.1-{lineage(1).folder}").mkdir(parents=True)
    assert call(capfd, "ls", run.root / "checkpoints")[1]["checkpoints"] == []
    code, data = call(capfd, "ls", tmp_path / lineage(1).folder)
    assert (code, "is one checkpoint" in data["error"]) == (Exit.BAD_CONFIG, True)


def test_a_damaged_manifest_is_named_with_its_file(capfd, tmp_path):
    step = saved(tmp_path / "checkpoints", drawn(shaped()))
    saved(tmp_path / "checkpoints", drawn(shaped()), step=6)
    flip(step / MANIFEST, at=200)
    code, data = call(capfd, "ls", tmp_path / "checkpoints")
    assert code == Exit.DONE
    assert [(row["step"], row["valid"]) for row in data["checkpoints"]] == [(6, True), (7, False)]
    assert data["checkpoints"][1]["reason"].startswith("manifest.json ")
    code, data = call(capfd, "verify", step)
    assert code == Exit.CHECK_FAILED
    assert data["checkpoints"][0]["path"] == str(step)
    assert data["checkpoints"][0]["problems"][0].startswith("manifest.json ")
    (step / MANIFEST).unlink()
    code, data = call(capfd, "verify", step)
    assert code == Exit.CHECK_FAILED
    assert data["checkpoints"][0]["problems"] == [
        "no manifest.json: the save was not finished, or it is not one of ours"
    ]
    code, data = call(capfd, "to-torch", step, tmp_path / "out.pt")
    assert (code, "no manifest.json" in data["error"]) == (Exit.CHECKPOINT, True)
