"""The commands of the README's chapter on checkpoints, run as they stand there, one after the other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from checkpointing.objects import ObjectPlace
from checkpointing.resume import survey
from configs.run_folder import read_events
from tests.support.pages import ROOT, blocks, section

STEP = re.compile(r"step-\d{8}-[\d.]+")


def newest(folder: str, spool: Path) -> str:
    """The name of the newest checkpoint where a command looks for one."""
    if "://" in folder:
        return ObjectPlace(folder, spool=spool, secret=None).survey().found[0].path.name
    return survey(spool / folder, secret=None).found[0].path.name


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_of_the_chapter_on_checkpoints_do_what_it_says(s3, tmp_path, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").mkdir("bucket")
    ran = []
    for line in "".join(blocks(section("README.md", "Checkpoints"), "sh")).splitlines():
        words = shlex.split(line)
        for at, word in enumerate(words):
            if STEP.search(word):
                words[at] = STEP.sub(newest(word[: STEP.search(word).start()].rstrip("/"), tmp_path), word)
        if words[:2] == ["phalanx", "launch"]:
            words += ["--job.cache_folder", "cache"]
            words += [] if "--training.steps" in words else ["--training.steps", "3"]
        ours = words[0] == "phalanx"
        command = [sys.executable, "-m", "ops", *words[1:]] if ours else [sys.executable, *words[1:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        ran.append((words, done.stdout + done.stderr))
    said = {" ".join(words[:3]): text for words, text in ran}
    assert len([line for line in ran[1][1].splitlines() if "kept: number" in line]) == 5, ran[1][1]
    assert "5 verified, every byte" in said["phalanx checkpoint verify"]
    weights = torch.load(tmp_path / "outputs/weights.pt", weights_only=True)["model"]
    stock = torch.load(tmp_path / "outputs/stock.pt", weights_only=True)
    assert all(torch.equal(stock[f"model.{name}"], tensor) for name, tensor in weights.items())
    (restore,) = [e for e in read_events(tmp_path / "outputs/begun/events/g0.jsonl") if e["event"] == "restore"]
    assert Path(restore["weights"]).name == newest("outputs/kept/checkpoints", tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "exported").num_parameters() > 1_000_000
    assert len(AutoTokenizer.from_pretrained(tmp_path / "exported")("def f(x):")["input_ids"]) > 1
