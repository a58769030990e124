"""A run from the command line whose checkpoints lie on S3: saved, continued, listed, exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.dump import to_toml
from configs.run_folder import RunFolder
from configs.words import Exit
from tests.support.rig import Run, holds
from tests.support.s3 import new_bucket

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.long
def test_a_run_lives_on_s3(rig, s3, tmp_path, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    url = new_bucket()

    def phalanx(*words: object) -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "ops", *map(str, words), "--json"],
            cwd=REPOSITORY,
            env={**os.environ, **s3},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == Exit.DONE, done.stderr
        return dict(json.loads(done.stdout))

    def launch(name: str, steps: int, **keys: object) -> Run:
        config = rig.config(name, groups=2, ranks=1, steps=steps, lr_scheduler__total_steps=12, **keys)
        file = tmp_path / "config.toml"
        file.write_text(to_toml(config))
        phalanx("launch", file)
        return Run(Exit.DONE, "", RunFolder(Path(config.job.dump_folder)), "")

    options = {"checkpoint__folder": url, "checkpoint__keep_latest_k": 2}
    assert launch("s3", 6, **options).chain[-1].step == 6
    run = launch("s3", 12, **options)
    holds(run, steps=12)
    assert {e["step"] for g in ("g0", "g1") for e in run.events(g, "restore") if e["source"] == "disk"} == {6}
    alone = rig.run("s3-alone", groups=1, ranks=1, steps=12, lr_scheduler__total_steps=12)
    assert run.series("digest") == alone.series("digest")
    rows = phalanx("checkpoint", "ls", run.folder.root)["checkpoints"]
    assert next(row["step"] for row in rows if row["valid"]) == 12
    assert len(rows) <= 3
    assert phalanx("checkpoint", "verify", url)["bad"] == 0
    newest = f"{url}/{run.chain[-1].folder}"
    phalanx("checkpoint", "to-hf", newest, tmp_path / "hf", "--model", "llama3", "--flavor", "tiny")
    begun = launch("s3-begun", 2, checkpoint__initial_load_path=newest)
    scratch = [e for e in begun.events("g0", "restore") if e["source"] == "scratch"]
    assert [e["weights"] for e in scratch] == [newest]
    assert not list((begun.folder.root / "spool").glob("*"))
