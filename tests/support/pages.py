"""The READMEs as data: sections, tables, code blocks, inline code, and the commands in them."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "ops/README.md")}
PACKAGES = ("configs", "lighthouse", "replica_groups", "checkpointing", "trainer", "ops")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level, text = re.search(rf"^(#+) {re.escape(heading)}$\n(.*)", PAGES[page], re.MULTILINE | re.DOTALL).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(text) if kind == language]


def spans(text: str) -> list[str]:
    """Inline code."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first heading is ``first``."""
    lines = FENCE.sub("", text).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def names(found: list[list[str]], column: int = 0) -> list[str]:
    return [name for row in found for name in spans(row[column])]


def shell_lines() -> list[list[str]]:
    """The words of every command of the shell blocks, without assignments before it and here-documents behind it."""
    found = []
    for page in PAGES.values():
        for block in blocks(page, "sh"):
            block = re.sub(r"<<'(\w+)'\n.*?^\1$", "", block, flags=re.MULTILINE | re.DOTALL)
            found += [shlex.split(line) for line in block.splitlines()]
    return [_without_assignments(words) for words in found if words]


def inline_commands(text: str) -> list[list[str]]:
    return [shlex.split(span) for span in spans(text) if re.match(r"(phalanx|make|torchrun|python) ", span)]


def _without_assignments(words: list[str]) -> list[str]:
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


def constants() -> set[str]:
    """Every string of the code; of an f-string its literal parts."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
