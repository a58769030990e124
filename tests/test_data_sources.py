"""Data sets: which files, in which order, and what is not read."""

from __future__ import annotations

import json

import pytest

from tests.support.data import write_corpus
from trainer.data import registry, sources
from trainer.data.errors import DataError


def documents(source):
    return [document for file in source.files for document in source.read(file)]


def test_standard_library_without_tests_and_packages():
    source = registry.open_source("python_stdlib", "")
    names = [source.relative(file) for file in source.files]
    assert {"os.py", "json/decoder.py", "asyncio/tasks.py"} <= set(names)
    assert not [n for n in names if "/test/" in f"/{n}" or "/tests/" in f"/{n}" or "-packages/" in n]
    assert not [n for n in names if n.startswith("_sysconfigdata")]
    assert names == [source.relative(file) for file in registry.open_source("python_stdlib", "").files]
    assert len(names) == len(set(names)) > 300


def test_bytes_that_are_not_utf8_are_replaced(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 \xff\n")
    assert documents(sources.text(str(tmp_path))) == ["caf\ufffd \ufffd\n"]


def test_text_folder_in_order_of_names_without_hidden_and_empty_files(tmp_path):
    write_corpus(tmp_path, files=2, lines=1)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z.md").write_text("z")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "02.txt").write_text("")
    source = registry.open_source("text", str(tmp_path))
    assert [source.relative(file) for file in source.files] == ["00.txt", "01.txt", "02.txt", "sub/z.md"]
    assert len(documents(source)) == 3
    assert len(registry.open_source("text", str(tmp_path / "0*.txt")).files) == 3
    assert len(registry.open_source("text", str(tmp_path / "00.txt")).files) == 1


def test_jsonl_reads_the_text_field(tmp_path):
    lines = [json.dumps({"text": f"doc {k}", "id": k}) for k in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "", json.dumps({"text": ""})]))
    (tmp_path / "notes.txt").write_text("not data")
    assert documents(registry.open_source("jsonl", str(tmp_path))) == ["doc 0", "doc 1", "doc 2"]


@pytest.mark.parametrize("line", ["{", "[]", '{"txt": "a"}', '{"text": 3}'])
def test_bad_json_line_is_named(tmp_path, line):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + line)
    with pytest.raises(DataError, match=r"a\.jsonl:2"):
        documents(registry.open_source("jsonl", str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("nothing", "", "python_stdlib"),
        ("text", "", "training.dataset_path"),
        ("text", "/no/such/folder", "/no/such/folder"),
        ("python_stdlib", "/tmp", "takes no path"),
    ],
)
def test_unusable_data_sets_are_refused(name, path, message):
    with pytest.raises(DataError, match=message):
        registry.open_source(name, path)


def test_own_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    write_corpus(tmp_path, files=1, lines=2)

    def shouting(path):
        plain = sources.text(path)
        return sources.Source(
            name="shouting", root=plain.root, files=plain.files, read=lambda file: [file.read_text().upper()]
        )

    registry.register("shouting", shouting)
    assert documents(registry.open_source("shouting", str(tmp_path)))[0].startswith("FILE 0 LINE 0")
    with pytest.raises(ValueError, match="registered already"):
        registry.register("text", shouting)
