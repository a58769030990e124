"""Token stores: built once, whole or not at all, and never used when damaged."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import signal
import time

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer

from tests.support.data import VOCABULARY, make_store, start_program, write_corpus
from trainer.data import sources, tokenise
from trainer.data.errors import DataError, StoreError
from trainer.data.prepare import prepare_store
from trainer.data.store import Store
from trainer.data.tokenise import content_digest

BUILD = """
import os, signal, sys
from trainer.data import tokenise
from trainer.data.prepare import prepare_store
corpus, cache, kill_after = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenise._SMALLEST_SHARD = 2000
done = []
def on_shard(index):
    done.append(index)
    if len(done) == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)
store = prepare_store(dataset="text", dataset_path=corpus, cache_folder=cache, vocab_size=300, children=2,
                      log=lambda text: print(text, flush=True), on_shard=on_shard)
print("digest", store.digest, flush=True)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def store(corpus, tmp_path_factory):
    return make_store(corpus, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def copied(store, tmp_path):
    """A store to damage."""
    folder = tmp_path / "store"
    folder.mkdir()
    for file in store.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def texts(store):
    tokenizer = Tokenizer.from_file(str(store.tokenizer))
    starts = store.documents
    return [
        tokenizer.decode(store.tokens[a:b].tolist(), skip_special_tokens=True) for a, b in itertools.pairwise(starts)
    ]


def test_store_holds_the_text(store, corpus):
    assert texts(store) == [file.read_text() for file in sorted(corpus.iterdir())]
    assert store.tokens.max() < store.vocab_size <= VOCABULARY
    assert store.tokens.dtype == np.uint16


def test_second_opening_builds_nothing(store, corpus):
    said = []
    again = make_store(corpus, store.folder.parents[1], log=said.append)
    assert again.digest == store.digest
    assert said == []


def test_same_text_elsewhere_is_the_same_store(store, tmp_path, monkeypatch):
    """Machines and shard sizes do not matter; groups compare this digest when they join."""
    monkeypatch.setattr(tokenise, "_SMALLEST_SHARD", 1500)
    other = make_store(write_corpus(tmp_path / "elsewhere"), tmp_path / "cache", children=2)
    assert other.digest == store.digest
    assert other.folder.name == store.folder.name


def test_changed_text_is_another_store(store, tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "03.txt").write_text("quite another text, long enough to hold a few tokens\n")
    assert make_store(corpus, store.folder.parents[1]).folder != store.folder


def test_special_tokens_inside_the_text_are_text(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", files=2)
    (corpus / "00.txt").write_text("a document that says <eos> and <bos> in its middle\n" * 20)
    store = make_store(corpus, tmp_path / "cache")
    assert np.count_nonzero(store.tokens == store.manifest["eos"]) == 2


def test_files_that_are_not_utf8_become_tokens(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", files=2)
    (corpus / "00.txt").write_bytes(b"caf\xe9 \xff sheep\n" * 5)
    assert texts(make_store(corpus, tmp_path / "cache"))[0] == "caf\ufffd \ufffd sheep\n" * 5


def test_tokenizer_of_a_hugging_face_folder(store, corpus, tmp_path):
    """No special token is needed; documents are kept apart by their boundaries."""
    tokenizer = Tokenizer.from_file(str(store.tokenizer))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<no>"}))
    other = make_store(corpus, tmp_path / "cache", hf_assets_path=str(tmp_path))
    assert other.manifest["bos"] is None
    assert other.manifest["eos"] == tokenizer.token_to_id("</s>") == other.vocab_size - 1
    assert texts(other) == texts(store)


def test_unusable_tokenizers_are_refused(corpus, tmp_path):
    with pytest.raises(DataError, match=r"model\.hf_assets_path: no tokenizer\.json"):
        make_store(corpus, tmp_path / "cache", hf_assets_path=str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"model\.hf_assets_path: .*tokenizer\.json is no tokenizer"):
        make_store(corpus, tmp_path / "cache", hf_assets_path=str(tmp_path))
    with pytest.raises(DataError, match=r"training\.vocab_size: expected at least 258"):
        make_store(corpus, tmp_path / "cache", vocab_size=257)


def test_data_without_text_is_refused(tmp_path):
    (tmp_path / "corpus").mkdir()
    with pytest.raises(DataError, match="no file to read"):
        make_store(tmp_path / "corpus", tmp_path / "cache")
    (tmp_path / "corpus" / "a.txt").write_text("")
    with pytest.raises(DataError, match="no text"):
        make_store(tmp_path / "corpus", tmp_path / "cache")


def test_unwritable_cache_is_named(corpus, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"job\.cache_folder"):
        make_store(corpus, tmp_path / "cache")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size - 2)


def empty(path):
    os.truncate(path, 0)


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip, truncate, empty, remove])
@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "tokenizer.json", "manifest.json"])
def test_damaged_store_is_refused(copied, name, damage):
    damage(copied / name)
    with pytest.raises(StoreError) as refused:
        Store(copied)
    assert str(copied / name) in str(refused.value)
    assert f"Delete the folder {copied}" in str(refused.value)


@pytest.mark.parametrize("damage", [flip, truncate, empty, remove])
def test_damaged_store_too_large_to_read_whole_is_refused(copied, damage):
    """Sizes, and the digests of the first and last MiB, are checked whatever the size."""
    damage(copied / "tokens.bin")
    with pytest.raises(StoreError, match=r"tokens\.bin"):
        Store(copied, whole_below=0)


def test_damaged_store_is_neither_used_nor_written_over(corpus, tmp_path):
    store = make_store(corpus, tmp_path)
    flip(store.folder / "tokens.bin")
    damaged = (store.folder / "tokens.bin").read_bytes()
    with pytest.raises(StoreError):
        make_store(corpus, tmp_path)
    assert (store.folder / "tokens.bin").read_bytes() == damaged


def test_pickled_store_reads_the_same(store):
    assert (pickle.loads(pickle.dumps(store)).tokens == store.tokens).all()


def test_content_digest_is_of_the_bytes(tmp_path):
    """Its note spares reading only files whose size and time are as before."""
    corpus = write_corpus(tmp_path / "corpus", files=1)
    before = content_digest(sources.text(str(corpus)), cache=tmp_path)
    assert content_digest(sources.text(str(corpus)), cache=tmp_path) == before
    (tmp_path / "content" / next((tmp_path / "content").iterdir()).name).write_text("torn")
    assert content_digest(sources.text(str(corpus)), cache=tmp_path) == before
    flip(corpus / "00.txt")
    assert content_digest(sources.text(str(corpus)), cache=tmp_path) != before


def test_racing_builders_build_once(store, corpus, tmp_path):
    racers = [start_program(BUILD, corpus, tmp_path, 0) for _ in range(3)]
    said = [racer.communicate(timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert "".join(said).count("built token store") == 1
    assert "".join(said).count("training a tokenizer") == 1
    assert "".join(said).count(f"digest {store.digest}") == 3


def test_killed_builder_is_resumed(store, corpus, tmp_path):
    """Finished shards are kept, torn ones are not believed, children end with their builder."""
    killed = start_program(BUILD, corpus, tmp_path, 3)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not [folder for folder in (tmp_path / "stores").iterdir() if not folder.name.startswith(".")]
    deadline = time.monotonic() + 30
    while encoders_of(killed.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not encoders_of(killed.pid)
    (shards,) = (tmp_path / "stores").glob(".*.shards")
    finished = sorted(shards.glob("shard-*"))
    assert len(finished) >= 3
    flip(finished[0])
    said, _ = start_program(BUILD, corpus, tmp_path, 0).communicate(timeout=60)
    resumed = int(said.split(" documents, ")[1].split(" of ")[0])
    assert resumed == len(finished) - 1
    assert f"digest {store.digest}" in said
    assert not shards.exists()


def encoders_of(pid):
    """Encoding children that were started by a process, wherever they are adopted now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trainer.data.encode" in words and str(pid) in words:
            found.append(process.pid)
    return found


def test_failed_child_is_an_error_not_a_wait(corpus, tmp_path, monkeypatch):
    """More shards are waiting than the children that fail can take."""
    shutil.rmtree(make_store(corpus, tmp_path).folder)
    monkeypatch.setattr(tokenise, "_SMALLEST_SHARD", 500)
    monkeypatch.setattr(
        "trainer.data.children.write_block", lambda stream, *_, **__: (stream.write(b"{}\n"), stream.flush())
    )
    with pytest.raises(DataError, match=r"that encodes .* ended with exit code"):
        make_store(corpus, tmp_path, children=2)


def test_slice_of_the_standard_library(tmp_path, monkeypatch):
    """Real source text, through the built-in data set, with nothing lost."""
    files = sources.python_stdlib("").files[:25]
    root = sources.python_stdlib("").root
    part = sources.Source(name="python_stdlib", root=root, files=files, read=sources.read_whole)
    monkeypatch.setattr("trainer.data.registry.open_source", lambda *_: part)
    store = prepare_store(dataset="python_stdlib", cache_folder=tmp_path, log=lambda _: None)
    assert store.vocab_size == 2048
    assert texts(store) == [text for file in files for text in sources.read_whole(file)]
