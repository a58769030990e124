"""Object stores: no rename there, so the manifest, written last, makes a checkpoint; the rest is as on disk."""

from __future__ import annotations

import fsspec
import pytest

from checkpointing.errors import CheckpointError, DamagedCheckpoint
from checkpointing.manifest import MANIFEST
from checkpointing.objects import UNFINISHED, ObjectPlace
from checkpointing.resume import load, offers
from checkpointing.writer import Checkpointer
from tests.support.small_disk import SmallDisk, why_not
from tests.support.states import Recorder, clocks, lineage, same, tensors


class Store:
    """A store and the one who saves there."""

    def __init__(self, url: str, spool) -> None:
        self.url, self.spool, self.sink = url, spool, Recorder()
        self.place = ObjectPlace(url, spool=spool, secret=None)
        self.fs, self.root = self.place._fs, self.place._root

    def saver(self, **options) -> Checkpointer:
        options = {"writer": "g0.2", "keep_latest_k": 0, "sink": self.sink, "place": self.place, **options}
        made = Checkpointer(self.spool, group=None, **options)
        made.start()
        return made

    def save(self, saver: Checkpointer, step: int, running: int = 3) -> None:
        saver.maybe_save(tensors=tensors(step), clocks=clocks(step, running), turn=True)
        saver.confirm(lineage(step, running))
        saver.wait()

    def steps(self) -> list[int]:
        return sorted(found.lineage.step for found in self.place.survey().found)

    def object(self, step: int, name: str = "", running: int = 3) -> str:
        return f"{self.root}/{lineage(step, running).folder}/{name}".rstrip("/")


@pytest.fixture
def store(store_url, tmp_path):
    return Store(store_url, tmp_path / "spool" / "g0")


def test_saved_states_read_back_to_the_bit_and_leave_no_local_copy(store):
    saver = store.saver()
    for step in (1, 2, 3):
        store.save(saver, step)
    assert saver.close(wait_s=30)
    assert [event["status"] for event in store.sink.events] == ["saved"] * 3
    assert list(store.spool.iterdir()) == []
    found, _ = offers(store.place.survey(), config_digest="c0ffee")
    assert [each.lineage.step for each in found] == [3, 2, 1]
    store.fs.pipe_file(f"{store.object(2, 'assets')}/tokenizer.json", b"beside")  # what somebody put there is no harm
    assert store.place.pull(found[1].path) == ""
    into = tensors(0)
    assert load(found[1].path, into, group=None, secret=None) == clocks(2)
    assert same(into, tensors(2))


def test_without_its_manifest_a_prefix_is_no_checkpoint_and_goes_when_it_is_old(store):
    saver = store.saver(keep_latest_k=1)
    store.save(saver, 1)
    store.fs.rm_file(store.object(1, MANIFEST))  # as if its writer had died in the middle
    seen = store.place.survey()
    assert (seen.found, seen.passed_over) == ((), ())
    assert [(each.name, each.reason) for each in seen.unfinished] == [(lineage(1).folder, UNFINISHED)]
    found, why = offers(seen, config_digest="c0ffee")
    assert found == (), "a run whose first save was cut off may start"
    assert f"passed over:\n  {lineage(1).folder}: {UNFINISHED}" in why, "and says so"
    store.save(saver, 2)
    store.fs.invalidate_cache()
    assert saver.close(wait_s=30)
    assert store.steps() == [2]
    assert not store.fs.exists(store.object(1))


def test_the_manifest_comes_last_and_only_after_the_rest_is_there(store, monkeypatch):
    order: list[str] = []
    put, pipe = store.fs.put_file, store.fs.pipe_file
    monkeypatch.setattr(store.fs, "put_file", lambda a, b, **k: (order.append(b), put(a, b, **k))[1])
    monkeypatch.setattr(store.fs, "pipe_file", lambda a, b, **k: (order.append(a), pipe(a, b, **k))[1])
    saver = store.saver()
    store.save(saver, 1)
    assert order[-1].endswith(MANIFEST)
    assert sum(name.endswith(MANIFEST) for name in order) == 1
    monkeypatch.setattr(store.fs, "put_file", lambda a, b, **k: put(a, b, **k) if b.endswith(".metadata") else None)
    store.save(saver, 2)
    assert saver.close(wait_s=30)
    assert store.sink.events[-1]["status"] == "failed"
    assert "not there as a whole" in store.sink.events[-1]["reason"]
    assert store.steps() == [1]


def test_old_ones_go_milestones_and_strangers_stay_and_a_rolled_back_branch_is_set_aside(store):
    saver = store.saver(keep_latest_k=2, keep_every=3)
    store.fs.pipe_file(f"{store.root}/notes.txt", b"mine")
    store.fs.pipe_file(f"{store.root}/step-7/mine.txt", b"mine")
    for step in range(1, 8):
        store.save(saver, step)
    assert store.steps() == [3, 6, 7]
    store.save(saver, 7, running=4)
    assert saver.close(wait_s=30)
    assert store.fs.exists(f"{store.root}/notes.txt")
    assert store.fs.exists(f"{store.root}/step-7/mine.txt")
    assert store.fs.exists(f"{store.root}/.aside-{lineage(7, 3).folder}/REASON.txt")
    assert [each.lineage for each in store.place.survey().found] == [lineage(7, 4), lineage(6), lineage(3)]


def test_what_lies_behind_a_rollback_is_set_aside(store):
    saver = store.saver()
    for step in (1, 2):
        store.save(saver, step)
    saver.fence([lineage(1, 5)])
    assert saver.close(wait_s=30)
    assert store.steps() == [1]
    reason = store.fs.cat_file(f"{store.root}/.aside-{lineage(2).folder}/REASON.txt").decode()
    assert reason == "it was rolled back: the run went on from step 1\n"


def test_damage_is_found_before_anything_is_unpickled_and_noted(store):
    saver = store.saver()
    store.save(saver, 1)
    store.save(saver, 2)
    assert saver.close(wait_s=30)
    data = bytearray(store.fs.cat_file(store.object(2, ".metadata")))
    data[len(data) // 2] ^= 1
    store.fs.pipe_file(store.object(2, ".metadata"), bytes(data))
    newest = store.place.survey().found[0]
    assert store.place.pull(newest.path) == ""
    with pytest.raises(DamagedCheckpoint, match=r"\.metadata is damaged") as error:
        load(newest.path, tensors(0), group=None, secret=None)
    store.place.mark_damaged(newest.path, error.value.reason)
    seen = store.place.survey()
    assert [each.lineage.step for each in seen.found] == [1]
    assert ".metadata is damaged" in seen.passed_over[0].reason
    store.fs.rm_file(store.object(1, sorted(store.place.survey().found[0].manifest.files)[-1]))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used"):
        offers(store.place.survey(), config_digest="c0ffee")


def test_a_store_that_is_full_costs_saves_and_nothing_else(tmp_path):
    if why_not():
        pytest.skip(why_not())
    with SmallDisk(tmp_path / "disk", size="256k") as disk:
        store = Store(f"file://{disk.folder}/run", tmp_path / "spool" / "g0")
        saver = store.saver(keep_latest_k=1)
        store.save(saver, 1)
        disk.fill()
        store.save(saver, 2)
        assert [event["status"] for event in store.sink.events] == ["saved", "failed"]
        assert "No space left" in store.sink.events[1]["reason"]
        assert store.steps() == [1]
        assert [each.name for each in store.place.survey().unfinished] in ([], [lineage(2).folder])
        with pytest.raises(CheckpointError, match="No space left"):
            saver.finish(tensors=tensors(3), clocks=clocks(3))
        disk.clear()
        store.save(saver, 4)
        saver.finish(tensors=tensors(5), clocks=clocks(5))
        assert saver.close(wait_s=30)
        assert store.steps() == [5]
        assert [path.name for path in (disk.folder / "run").iterdir()] == [lineage(5).folder], "no half one is left"
        assert list(store.spool.iterdir()) == []


def test_a_store_without_its_plugin_is_refused_by_name(tmp_path, monkeypatch):
    def missing(url: str):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(CheckpointError, match="needs fsspec's plugin s3fs"):
        ObjectPlace("s3://bucket/run", spool=tmp_path, secret=None)
