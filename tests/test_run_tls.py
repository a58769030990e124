"""A whole run with mutual TLS and a secret: gateway, pages, lifelines, peer transfer and metrics speak TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from configs.dump import to_toml
from configs.run_folder import RunFolder
from configs.words import Exit
from tests.support.certificates import keys_of, make_tls
from tests.support.rig import Run, holds

REPOSITORY = Path(__file__).parents[1]
SECRET = "of the test"


def test_a_run_with_mutual_tls_and_a_secret_loses_a_group_and_heals_it(rig, tmp_path):
    tls = make_tls(tmp_path)
    config = rig.config("tls", steps=50, chaos__failpoints=["g1:backward@9#1:kill"], **keys_of(tls))
    file = tmp_path / "tls.toml"
    file.write_text(to_toml(config))
    done = subprocess.run(
        [sys.executable, "-m", "ops", "launch", str(file)],
        cwd=REPOSITORY,
        env={**os.environ, "PHALANX_SECRET": SECRET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.DONE, done.stdout + done.stderr
    run = Run(done.returncode, "", RunFolder(Path(config.job.dump_folder)), done.stdout)
    holds(run, steps=50)
    run.series("digest")
    assert [e["sources"] for e in run.events("g1", "heal")] == [["g0"]], "the state came over TLS"
    endpoints = [e["endpoint"]["metrics"] for group in ("g0", "g1") for e in run.events(group, "start")]
    [started] = run.events("launcher", "lighthouse")
    for url in (*endpoints, started["gateway"], started["page"]):
        assert url.startswith("https://"), url
    written = json.dumps([e for writer in ("g0", "g1", "launcher", "lighthouse") for e in run.events(writer)])
    assert SECRET not in written + done.stdout + (run.folder.root / "config.toml").read_text()
