"""What holds for the tree as a whole: what a wheel carries, where packages lie, sizes, import direction, TOMLs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import trainer
from configs.load import load
from ops.chaos import reading, scenario

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
ROOTS = PROJECT["tool"]["importlinter"]["root_packages"]
REASON = re.compile(r"# long: \S+")
MAX_FILE, MAX_FUNCTION = 350, 80


def sources(pattern: str, *folders: str) -> list[Path]:
    """Files of the tree by pattern, without hidden, built and generated ones."""
    found = (path for folder in folders or ("",) for path in sorted((ROOT / folder).rglob(pattern)))
    return [path for path in found if not _aside(path.relative_to(ROOT))]


def _aside(path: Path) -> bool:
    aside = any(part.startswith(".") or part in {"build", "dist", "outputs", "__pycache__"} for part in path.parts)
    return aside or "_pb2" in path.name or any(part.endswith(".egg-info") for part in path.parts)


PYTHON = sources("*.py", *ROOTS, "tests")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_packages_come_from_this_checkout():
    """The folder names are other projects' names on the package index."""
    assert Path(trainer.__file__).resolve().parent == ROOT / "trainer"


def test_every_folder_with_modules_is_a_listed_package():
    folders = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in sources("*.py", *ROOTS)}
    assert folders == set(PACKAGES)
    assert {package.partition(".")[0] for package in PACKAGES} == set(ROOTS)


def test_a_wheel_carries_our_packages_and_their_data_only(tmp_path: Path):
    tree = tmp_path / "tree"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ROOTS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=ignore)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("phalanx-*.whl")
    files = {Path(n) for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}

    page = {file for file in files if file.parts[:2] == ("lighthouse", "page")}
    chaos = {file for file in files if file.parts[:3] == ("ops", "chaos", "scenarios")}
    code = files - page - chaos
    assert {file.parent.as_posix().replace("/", ".") for file in code} <= set(PACKAGES)
    assert {file.suffix for file in code} <= {".py", ".pyi", ".toml", ".proto", ".typed"}
    assert chaos == {path.relative_to(ROOT) for path in sources("*.*", "ops/chaos/scenarios")}
    assert page == {path.relative_to(ROOT) for path in sources("*", "lighthouse/page") if path.is_file()}
    expected = {path.relative_to(ROOT) for path in sources("*.py", *ROOTS) + sources("*.toml", "configs")}
    expected |= {path.relative_to(ROOT) for path in sources("*.proto", *ROOTS)}
    assert expected <= files


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_files_and_functions_are_short_or_say_why_not(path: Path):
    lines = path.read_text().splitlines()
    if len(lines) > MAX_FILE:
        assert any(REASON.match(line) for line in lines[:5]), f"{len(lines)} lines without '# long: reason' at the top"
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > MAX_FUNCTION:
            first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
            above = lines[first - 2].strip() if first > 1 else ""
            assert REASON.match(above), f"{function.name}: {length} lines without '# long: reason' above it"


def test_imports_point_one_way():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", sources("*.toml"), ids=name)
def test_every_toml_parses(path: Path):
    if path.name == "pyproject.toml":
        assert tomllib.loads(path.read_text())
    elif path.parent == scenario.FOLDER:
        reading.load(str(path))
    else:
        load(path)


def test_shipped_configs_name_their_launch_line():
    for path in sources("*.toml", "configs"):
        assert f"phalanx launch {path.stem}" in path.read_text()
