"""The two READMEs say what is true: every command, option, key, path, name, message and table in them is checked."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import tomli_w

from configs import failpoints
from configs.fields import Alias, Later, NoEquivalent
from configs.keys import RENAMED, leaves, mark, nested, sections, value_of
from configs.load import Config, ConfigError, load, parse_text, split_config_file
from configs.names import shipped
from configs.run_folder import RunFolder
from configs.sources import from_command_line
from configs.unsupported import GATES
from configs.words import DepartureCause, DiscardReason, Exit, Lineage
from ops.__main__ import main
from ops.chaos.demo import UNDISTURBED
from ops.cli import build_parser, find, split_keys
from ops.commands import COMMANDS
from ops.launch.endpoints import SD_FILE
from ops.launch.life import early_log
from ops.launch.policy import Ending, Next, Policy, restart_decision
from ops.metrics_table import rows as metric_rows
from ops.metrics_table import table as metrics_table
from ops.report import read_report, text_of
from tests.support import logs
from tests.support.pages import (
    PACKAGES,
    PAGES,
    ROOT,
    blocks,
    constants,
    inline_commands,
    names,
    section,
    shell_lines,
    spans,
    table,
)
from trainer.data import registry
from trainer.phases import Phase

LATER = "What does not exist yet"
KEY = re.compile(r"[a-z_0-9]+(\.[a-z_0-9]+)+")


ALL = [*shell_lines(), *(words for page in PAGES.values() for words in inline_commands(page))]


# ---- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [w for w in ALL if w[0] == "phalanx"], ids=" ".join)
def test_a_command_of_phalanx_parses(words, capfd):
    _, *words = words
    command = find(COMMANDS, words)
    assert command is not None, "no such command"
    if tuple(words) == command.path:
        return  # named, not called
    rest, keys = split_keys(words) if command.takes_keys else (words, [])
    options = build_parser(COMMANDS).parse_args(rest)
    config = getattr(options, "config", None)
    if config in shipped():
        load(config, keys)
        if command.name == "launch":
            assert main([*words, "--dry-run"]) == Exit.DONE
            assert "would not start" not in capfd.readouterr().out


@pytest.mark.parametrize("words", [w for w in ALL if w[0] == "make"], ids=" ".join)
def test_a_target_of_make_exists(words):
    makefile = (ROOT / "Makefile").read_text()
    targets = [word for word in words[1:] if "=" not in word]
    for word in words[1:]:
        assert "=" not in word or re.search(rf"^{word.partition('=')[0]} \?=", makefile, re.MULTILINE)
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [w for w in ALL if "-m" in w and "torchtitan" not in " ".join(w)], ids=" ".join)
def test_a_module_that_is_run_exists(words):
    at = words.index("-m") + 1
    assert importlib.util.find_spec(words[at]) is not None
    if words[at] == "trainer":
        source, keys = split_config_file(words[at + 1 :])
        assert source is not None
        assert not from_command_line(keys)[1]


def test_nothing_else_is_run():
    assert {words[0] for words in shell_lines()} <= {"phalanx", "make", ".venv/bin/python"}


def test_options_named_alone_are_some_commands():
    known = set(_options(build_parser(COMMANDS)))
    named = [span.split() for page in PAGES.values() for span in spans(page) if span.startswith("--")]
    assert {option for option, *_ in named if "." not in option} <= known
    keys = [words for words in named if "." in words[0] and words[0] != "--section.key"]
    assert not from_command_line([word for key, *value in keys for word in _given(key, value)])[1]


def _given(key: str, value: list[str]) -> list[str]:
    """A key as it is named, with a value where it needs one and none is named."""
    return [key, *value] if value or "enable" not in key or ".no_" in key else [f"{key}=true"]


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found = [option for action in parser._actions for option in action.option_strings]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [option for child in action.choices.values() for option in _options(child)]
    return found


def test_the_table_of_commands_is_all_there_is():
    listed = {find(COMMANDS, span.split()[1:]) for span in names(table(section("README.md", "Commands"), "command"))
              if span.startswith("phalanx ")}  # fmt: skip
    assert listed == {command for command in COMMANDS if command.module is not None}


def test_shipped_configs_are_named():
    assert set(shipped()) <= set(spans(section("README.md", "Commands")))


# ---- exit codes ----------------------------------------------------------------------------------------------------


def test_exit_codes_are_all_there():
    codes = [int(row[0]) for row in table(section("README.md", "Commands"), "exit code")]
    assert codes == [int(code) for code in Exit]
    assert codes == [int(row[0]) for row in table(section("ops/README.md", "Exit codes"), "code")]


def test_what_the_launcher_starts_again():
    for code, _, again in table(section("README.md", "Commands"), "exit code"):
        if int(code) != Exit.INTERRUPTED:
            decision, _ = restart_decision([Ending(code=int(code))], Policy())
            assert again.startswith("yes") == (decision.next is Next.RESTART), code


# ---- configuration -------------------------------------------------------------------------------------------------


def test_every_key_exists():
    top = set(Config.model_fields)
    unknown = set()
    for page in PAGES.values():
        for span in [*spans(page), *(word for words in shell_lines() for word in words)]:
            for word in re.split(r"[\s,=]+", span.removeprefix("--")):
                if KEY.fullmatch(word) and word.partition(".")[0] in top and ".no_" not in word:
                    unknown |= {word} - set(leaves()) - sections() - set(RENAMED)
    assert not unknown


def test_the_shown_problems_are_the_real_ones():
    (shown,) = [block for block in blocks(section("README.md", "Configuration"), "text") if "did you mean" in block]
    written = ["--training.setps", "5", "--optimizer.lr", "fast", "--launch.groups", "0"]
    with pytest.raises(ConfigError) as caught:
        load("debug", [*written, "--parallelism.tensor_parallel_degree", "2"])
    assert str(caught.value) == shown.strip()


def test_what_does_not_exist_yet_is_what_is_refused():
    text = section("README.md", LATER)
    refused = {word for span in spans(text) for word in [span.split(" ")[0]] if word in leaves()}
    assert refused == {key for key, _, _ in GATES}
    named = {find(COMMANDS, span.split()[1:]) for span in spans(text) if span.startswith("phalanx ")}
    assert named == {command for command in COMMANDS if command.module is None}
    elsewhere = PAGES["README.md"].replace(text, "") + PAGES["ops/README.md"]
    called = {find(COMMANDS, words[1:]) for words in inline_commands(elsewhere) if words[0] == "phalanx"}
    assert not called & named


TITAN = [
    row
    for row in table(section("README.md", "Coming from torchtitan"), "torchtitan")
    if all(KEY.fullmatch(span) for span in spans(row[0]))
]


@pytest.mark.parametrize("row", TITAN, ids=lambda row: row[0])
def test_a_torchtitan_key_is_what_the_table_says(row):
    theirs, ours = spans(row[0]), spans(row[1])
    for number, key in enumerate(theirs):
        if key in leaves() and value_of(Config(), key) is not None:
            assert parse_text(tomli_w.dumps(nested({key: value_of(Config(), key)})))
        if "the same" in row[1]:
            assert key in leaves()
            assert not any(mark(key, kind) for kind in (Alias, Later, NoEquivalent))
        elif row[1].startswith("no equivalent"):
            assert mark(key, NoEquivalent)
        elif key in RENAMED:
            assert RENAMED[key] == ours[number]
        elif alias := mark(key, Alias):
            assert alias.target == ours[0]
        else:
            assert key in {gate for gate, _, _ in GATES}, "neither taken nor refused"


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page):
    text = PAGES[page]
    links = [(ROOT / page).parent / target for target in re.findall(r"\]\(([^)#]+)\)", text)]
    inside = re.compile(rf"({'|'.join(PACKAGES)}|tests|\.ci)/[\w./-]*")
    named = [ROOT / span for span in spans(text) if inside.fullmatch(span)]
    assert not [path for path in (*links, *named) if not path.exists()]


def test_the_layout_of_the_repository():
    (block,) = [b for b in blocks(section("README.md", "Repository"), "text") if "configs/" in b]
    folders = {line.split()[0].rstrip("/") for line in block.splitlines()}
    assert folders == {*PACKAGES, "tests"}


def test_the_layout_of_the_run_folder():
    (block,) = blocks(section("README.md", "Run folder"), "text")
    shown = set(block.split())
    folder = RunFolder(Path())
    expected = {
        *map(str, (folder.config, folder.scenario, folder.lighthouse_state, folder.endpoints, folder.events / SD_FILE)),
        *(str(folder.event_log(writer)) for writer in ("<group>", "lighthouse", "launcher")),
        str(folder.rank_log(group="<group>", incarnation="<incarnation>", rank="<k>")),
        str(early_log(folder, group="<group>", rank="<k>")),
        f"{UNDISTURBED}/",
    }
    assert expected <= shown
    checkpoint = next(word for word in shown if word.startswith("checkpoints/"))
    name = checkpoint.removeprefix("checkpoints/").rstrip("/")
    assert Lineage.parse_folder(name.replace("EPOCH.N", "1796075653.44"))


# ---- words of the code ---------------------------------------------------------------------------------------------


def test_every_event_is_in_the_runbook():
    written = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node) in {"sink", "_sink", "log"} and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and re.fullmatch(r"[a-z_]+", str(first.value)):
                    written.add(first.value)
    assert sorted(names(table(section("ops/README.md", "Events"), "event"))) == sorted(written)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_reasons_and_causes_are_all_there():
    text = section("ops/README.md", "Events")
    assert names(table(text, "reason of a discard")) == [reason.value for reason in DiscardReason]
    assert sorted(names(table(text, "cause of a departure"))) == sorted(cause.value for cause in DepartureCause)


def test_failpoints_and_phases_are_all_there():
    listed = section("ops/README.md", "Faults on purpose").partition("Names, in")[2]
    points, _, actions = listed.partition("Actions:")
    assert spans(points) == list(failpoints.NAMES)
    assert [action.partition("=")[0] for action in spans(actions)] == list(failpoints.ACTIONS)
    phases = section("ops/README.md", "Metrics").partition("`phase` is one of")[2].partition("The table")[0]
    assert set(spans(phases)) == {phase.value for phase in Phase}


def test_the_table_of_metrics_is_the_registries():
    between = PAGES["ops/README.md"].partition("<!-- metrics -->\n")[2].partition("\n<!-- end of metrics -->")[0]
    assert between == metrics_table(), "write it anew: python -m ops.metrics_table"
    made = {row.name for row in metric_rows()}
    for node in ast.walk(ast.parse((ROOT / "trainer" / "metrics.py").read_text())):
        if (
            isinstance(node, ast.Call)
            and _called(node) in {"_count", "_set"}
            and isinstance(node.args[0], ast.Constant)
        ):
            assert f"phalanx_{node.args[0].value}" in made, "no event of ops.metrics_table feeds it"
    mentioned = {span for page in PAGES.values() for span in spans(page) if span.startswith("phalanx_")}
    assert mentioned <= made


def test_messages_are_those_of_the_code():
    found = constants()
    messages = names(table(section("README.md", "Troubleshooting"), "message"))
    assert len(messages) > 20
    assert not [piece for piece in messages if not any(piece in text for text in found)]


def test_the_shown_report_has_the_rows_of_a_report():
    (shown,) = [block for block in blocks(section("README.md", "What the demo does"), "text") if "ledger" in block]
    steps = [logs.commit(step, {"g0": [2 * step - 2], "g1": [2 * step - 1]}, digest="d") for step in (1, 2)]
    death = {"t": 1.5, "event": "exit", "group": "g1", "incarnation": 1, "code": -9, "reason": "killed by SIGKILL"}
    report = read_report(logs.logs([logs.confirmed(1), logs.confirmed(2)], [death], g0=steps, g1=steps))
    labels = {line[2:14].strip() for line in text_of(report).splitlines()}
    assert {line[2:14].strip() for line in shown.splitlines()[1:]} == labels | {"undisturbed"}


# ---- code in the pages ---------------------------------------------------------------------------------------------


def test_the_data_set_of_the_example_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    (code,) = blocks(section("README.md", "Your own data set, your own model"), "python")
    exec(compile(code, "notes.py", "exec"), {})
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    source = registry.open_source("notes", str(tmp_path))
    assert [list(source.read(file)) for file in source.files] == [["one"]]
