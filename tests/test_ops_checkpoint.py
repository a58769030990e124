"""``phalanx checkpoint``: what is there and why it stays, every byte checked, weights in and out."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from checkpointing import verifying
from checkpointing.hf_format import SafetensorsFolder
from checkpointing.manifest import file_digest
from configs.dump import to_toml
from configs.load import load as load_config
from configs.run_folder import RunFolder
from configs.words import Exit
from ops.__main__ import main
from tests.support.states import flip
from tests.support.weights import drawn, original, saved, shaped


def call(capfd, *words):
    """(exit code, the object on stdout, what people read)."""
    code = main(["checkpoint", *map(str, words), "--json"])
    captured = capfd.readouterr()
    data = json.loads(captured.out)
    assert data.pop("exit") == code
    return code, data, captured.err


@pytest.fixture
def run(tmp_path):
    """A run folder with five checkpoints; config: keep 2 and every third step."""
    folder = RunFolder(tmp_path / "run")
    keys = ["--model.flavor", "tiny", "--checkpoint.keep_latest_k", "2", "--checkpoint.keep_every", "3"]
    folder.root.mkdir()
    folder.config.write_text(to_toml(load_config("debug", keys)))
    model = drawn(shaped())
    for step in range(1, 6):
        saved(folder.root / "checkpoints", model, step=step)
    return folder


def step_folder(run, step):
    (found,) = run.root.glob(f"checkpoints/step-{step:08d}-*")
    return found


# --- ls and verify ---------------------------------------------------------------------------------------------------


def test_ls_says_size_time_and_why_each_one_stays(run, capfd):
    damaged = step_folder(run, 4) / "__0_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    code, data, _ = call(capfd, "ls", run.root)
    assert code == Exit.DONE
    rows = {row["step"]: row for row in data["checkpoints"] if row["valid"]}
    assert list(rows) == [5, 3, 2, 1]
    assert rows[5]["kept"] == "number 1 of the newest"
    assert rows[3]["kept"] == "number 2 of the newest"
    assert rows[2]["kept"] == "the next save removes it: 2 newer ones are durable"
    assert all(row["bytes"] > 100_000 and row["time"] > 1.7e9 for row in rows.values())
    (bad,) = [row for row in data["checkpoints"] if not row["valid"]]
    assert bad["name"] == step_folder(run, 4).name
    assert "bytes instead of" in bad["reason"]
    assert bad["bytes"] > 100_000

    assert main(["checkpoint", "ls", str(run.root)]) == Exit.DONE
    lines = capfd.readouterr().out.splitlines()
    assert re.search(r"step-00000005-\S+ +\d+\.\d MB  20\d\d-\S+ \S+  g0\.1 +kept: number 1 of the newest", lines[0])
    assert "passed over: " in lines[-1]
    code, data, _ = call(capfd, "ls", run.root / "checkpoints")  # no config: nothing says how many stay
    assert [row["kept"] for row in data["checkpoints"]] == [None] * 5


def test_verify_checks_every_byte_and_names_every_damaged_file(run, capfd):
    code, data, _ = call(capfd, "verify", run.root)
    assert (code, data["bad"]) == (Exit.DONE, 0)
    assert [row["step"] for row in data["checkpoints"]] == [5, 4, 3, 2, 1]
    bad = step_folder(run, 2)
    flip(bad / "__0_0.distcp", at=5000)
    flip(bad / ".metadata", at=50)
    code, data, err = call(capfd, "verify", run.root)
    assert (code, data["bad"]) == (Exit.CHECK_FAILED, 1)
    (row,) = [row for row in data["checkpoints"] if not row["valid"]]
    assert row["name"] == bad.name
    assert sorted(problem.split()[0] for problem in row["problems"]) == [".metadata", "__0_0.distcp"]
    assert f"{bad.name}  BAD: " in err
    code, data, _ = call(capfd, "verify", step_folder(run, 3))
    assert (code, [row["step"] for row in data["checkpoints"]]) == (Exit.DONE, [3])
    code, data, _ = call(capfd, "verify", bad)
    assert code == Exit.CHECK_FAILED
    (bad / "manifest.json").unlink()
    code, data, _ = call(capfd, "verify", run.root)
    assert (code, data["bad"]) == (Exit.CHECK_FAILED, 1)


def test_verify_needs_something_to_check_and_the_secret(run, capfd, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert call(capfd, "verify", tmp_path / "empty")[0] == Exit.CHECKPOINT
    assert call(capfd, "verify", tmp_path / "nowhere")[0] == Exit.BAD_CONFIG
    keyed = saved(tmp_path / "keyed", drawn(shaped()), secret=b"key")
    assert call(capfd, "verify", keyed)[0] == Exit.CHECK_FAILED
    monkeypatch.setenv("PHALANX_SECRET", "key")
    assert call(capfd, "verify", keyed)[0] == Exit.DONE
    code, data, _ = call(capfd, "verify", step_folder(run, 3))
    assert code == Exit.CHECK_FAILED
    assert "without the secret" in data["checkpoints"][0]["problems"][0]


def test_files_are_hashed_side_by_side(run, monkeypatch):
    """Two files wait for each other: one after the other they would wait for ever."""
    from threading import Barrier

    both = Barrier(2, timeout=30)

    def digest(path, *, secret, threads=1):
        both.wait()
        return file_digest(path, secret=secret)

    monkeypatch.setattr(verifying, "file_digest", digest)
    monkeypatch.setattr(verifying.os, "sched_getaffinity", lambda _: {0, 1})
    assert not verifying.verify_all(step_folder(run, 3), secret=None).problems


# --- weights out and in ----------------------------------------------------------------------------------------------


def test_to_hf_reads_the_runs_config_and_from_hf_reads_its_folder(run, capfd, tmp_path):
    out = tmp_path / "hf"
    code, data, _ = call(
        capfd, "to-hf", step_folder(run, 3), out, "--export-dtype", "bfloat16", "--max-file-gb", "4e-5"
    )
    assert code == Exit.DONE
    assert (data["step"], data["dtype"], data["tokenizer"]) == (3, "bfloat16", False)
    assert sum(name.endswith(".safetensors") for name in data["files"]) > 1
    assert AutoModelForCausalLM.from_pretrained(out).dtype == torch.bfloat16
    assert call(capfd, "to-hf", step_folder(run, 3), out)[0] == Exit.BAD_CONFIG  # it exists
    code, data, _ = call(capfd, "from-hf", out, tmp_path / "seed", "--model", "llama3", "--flavor", "tiny")
    assert code == Exit.DONE
    assert data["tensors"] == len(SafetensorsFolder(out).shapes)
    assert call(capfd, "verify", tmp_path / "seed")[0] == Exit.DONE
    code, data, _ = call(capfd, "from-hf", out, tmp_path / "other", "--model", "llama3", "--flavor", "debug")
    assert code == Exit.CHECKPOINT
    assert "describes another model than llama3 debug: hidden_size is 32, the flavor has 128" in data["error"]
    assert not (tmp_path / "other").exists()
    flip(step_folder(run, 3) / "__0_0.distcp")
    assert call(capfd, "to-hf", step_folder(run, 3), tmp_path / "more")[0] == Exit.CHECKPOINT


def test_from_meta_imports_original_weights(capfd, tmp_path):
    args = shaped()
    params = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 300, "norm_eps": 1e-5}
    folder = original(tmp_path / "meta", drawn(args), parts=2, params={**params, "rope_theta": 500000.0})
    words = ("from-meta", folder, tmp_path / "seed", "--model", "llama3", "--flavor", "tiny")
    code, data, err = call(capfd, *words)
    assert code == Exit.DONE
    assert data["parameters"] == sum(p.numel() for p in drawn(args).parameters())
    assert "100%  output.weight" in err
    assert call(capfd, *words)[0] == Exit.BAD_CONFIG  # it exists
    code, data, _ = call(capfd, "to-hf", tmp_path / "seed", tmp_path / "hf")
    assert code == Exit.DONE


def test_a_run_folder_is_told_from_a_checkpoint_and_the_newest_is_named(run, capfd, tmp_path):
    newest = step_folder(run, 5)
    for given, kind in ((run.root, "a run folder"), (run.root / "checkpoints", "a folder of checkpoints")):
        for words in (("to-hf", given, tmp_path / "hf"), ("to-torch", given, tmp_path / "out.pt")):
            code, data, _ = call(capfd, *words)
            assert code == Exit.BAD_CONFIG
            assert data["error"] == f"{given} is {kind}, expected one checkpoint; the newest is {newest}"
    shutil.rmtree(run.root / "checkpoints")
    assert call(capfd, "to-hf", run.root, tmp_path / "hf")[1]["error"].endswith("; it has none yet")
    code, data, _ = call(capfd, "to-hf", tmp_path, tmp_path / "hf")
    assert (code, "no manifest.json" in data["error"]) == (Exit.CHECKPOINT, True)


def test_a_file_that_cannot_be_written_is_exit_2_before_anything_is_read(run, capfd, tmp_path, monkeypatch):
    out = tmp_path / "no" / "such" / "x.pt"
    code, data, _ = call(capfd, "to-torch", step_folder(run, 5), out)
    assert (code, data["error"]) == (Exit.BAD_CONFIG, f"{out} cannot be written: no folder {out.parent}")

    def full(*_):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed\nframe #0: ...")

    monkeypatch.setattr(torch, "save", full)
    code, data, _ = call(capfd, "to-torch", step_folder(run, 5), tmp_path / "x.pt")
    assert code == Exit.BAD_CONFIG
    assert data["error"].startswith(f"{tmp_path / 'x.pt'} cannot be written: PytorchStreamWriter failed")
    assert "frame" not in data["error"]


@pytest.mark.parametrize(
    "words",
    [
        ("to-hf", "/no/such/step", "out"),
        ("to-hf", "/tmp", "out", "--max-file-gb", "1e300"),
        ("to-hf", "/tmp", "out", "--max-file-gb", "nan"),
        ("to-hf", "/tmp", "out", "--max-file-gb", "1e-10"),
        ("to-hf", "/tmp", "out", "--max-file-gb", "much"),
        ("to-hf", "", "out"),
        ("to-hf", "/tmp", ""),
        ("to-torch", "", "out.pt"),
        ("from-hf", "", "out", "--model", "llama3", "--flavor", "tiny"),
        ("ls", ""),
        ("ls", "file:///no/such/folder"),
        ("verify", ""),
        ("verify", " "),
        ("verify", "file:///no/such/folder"),
        ("to-hf", "/tmp", "out", "--export-dtype", "int8"),
        ("to-hf", "/tmp", "out", "--max-file-gb", "0"),
        ("from-hf", "/no/such/folder", "out", "--model", "llama3", "--flavor", "tiny"),
        ("from-hf", "/tmp", "out", "--model", "llama3"),
        ("from-hf", "/tmp", "out", "--model", "llama9", "--flavor", "tiny"),
        ("from-meta", "/tmp", "out", "--model", "llama3", "--flavor", "9B"),
        ("from-hf", "/tmp", "s3://bucket/seed", "--model", "llama3", "--flavor", "tiny"),
        ("to-hf", "/tmp", "s3://bucket/exported"),
        ("to-torch", "/tmp", "file:///tmp/weights.pt"),
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2(words, capfd):
    code, data, _ = call(capfd, *words)
    assert code == Exit.BAD_CONFIG
    assert data["error"]
