"""The lighthouse's journal: what is committed is there again, whatever moment the writer died at."""

import dataclasses
import errno
import os

import pytest

from configs.words import Lineage
from lighthouse.state import Fence, Journal, Participant, StateError, Stored, read_state
from tests.support.lighthouse import terms

FULL = Stored(
    epoch=1_700_000_000,
    running=7,
    attempt=99,
    granted=Lineage(3, 98),
    confirmed_by=("g0",),
    last_quorum_id=98,
    floors={"g0": 2, "g1": 1},
    known=(Participant("g0", 2), Participant("g1", 1)),
    fences=(Fence(2, 90),),
    ended=Lineage(3, 98),
    incarnations={"g0": 2, "g1": 1},
    lives={"g0": "a", "g1": ""},
    terms=terms(),
)


def reopened(path):
    journal = Journal(path)
    journal.close()
    return journal.state


def test_every_field_survives(tmp_path):
    path = tmp_path / "state"
    journal = Journal(path)
    journal.commit(FULL)
    journal.close()
    assert reopened(path) == FULL
    assert reopened(path) == FULL


def test_changes_add_up_over_many_lines_and_a_compaction(tmp_path):
    path = tmp_path / "state"
    journal = Journal(path, compact_after=10)
    for number in range(1, 26):
        floors = {**journal.state.floors, f"g{number}": number}
        journal.commit(dataclasses.replace(FULL, running=number, floors=floors))
    expected = journal.state
    journal.close()
    assert reopened(path) == expected
    assert path.read_bytes().count(b"\n") <= 10


def test_the_end_can_be_taken_back(tmp_path):
    path = tmp_path / "state"
    journal = Journal(path)
    journal.commit(FULL)
    journal.commit(dataclasses.replace(FULL, ended=None, known=()))
    journal.close()
    assert reopened(path) == dataclasses.replace(FULL, ended=None, known=())


def test_a_torn_last_line_is_ignored_at_every_length(tmp_path):
    path = tmp_path / "state"
    journal = Journal(path)
    journal.commit(FULL)
    size = path.stat().st_size
    journal.commit(FULL.bury(Participant("g1", 1)))
    journal.close()
    whole = path.read_bytes()
    for length in range(size, len(whole)):
        path.write_bytes(whole[:length])
        assert reopened(path) == FULL
    path.write_bytes(whole)
    assert reopened(path).buried(Participant("g1", 1))


def test_a_damaged_file_is_named_and_left_alone(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b'{"epoch": 1}\nnonsense\n{"running": 2}\n')
    with pytest.raises(StateError, match=r"state.*line 2.*move the file away"):
        Journal(path)
    assert path.read_bytes().startswith(b'{"epoch": 1}\nnonsense')


def test_unknown_fields_are_refused(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b'{"colour": 1}\n')
    with pytest.raises(StateError, match="state"):
        Journal(path)


def test_one_writer_only(tmp_path):
    journal = Journal(tmp_path / "state")
    with pytest.raises(StateError, match="in use by another lighthouse"):
        Journal(tmp_path / "state")
    journal.close()
    Journal(tmp_path / "state").close()


def test_burying_buries_predecessors_and_never_less():
    state = Stored().bury(Participant("g0", 3)).bury(Participant("g0", 1))
    assert [state.buried(Participant("g0", number)) for number in (1, 3, 4)] == [True, True, False]
    assert not state.buried(Participant("g1", 1))


def full_disk(monkeypatch, *, room):
    """From here on ``os.write`` takes ``room`` bytes, then nothing."""
    left, write = [room], os.write

    def partly(fd, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = bytes(data)[: left[0]]
        left[0] -= len(part)
        return write(fd, part)

    monkeypatch.setattr(os, "write", partly)


@pytest.mark.parametrize("compact_after", [10, 1])
@pytest.mark.parametrize("room", [0, 7])
def test_a_disk_that_fills_up_in_a_commit_changes_nothing_and_harms_nothing_later(
    tmp_path, monkeypatch, room, compact_after
):
    path = tmp_path / "state"
    journal = Journal(path, compact_after=compact_after)
    journal.commit(FULL)
    with monkeypatch.context() as disk:
        full_disk(disk, room=room)
        with pytest.raises(OSError, match="No space left"):
            journal.commit(dataclasses.replace(FULL, running=8))
    assert journal.state == FULL
    assert read_state(path) == FULL
    journal.commit(dataclasses.replace(FULL, running=9))
    journal.close()
    assert reopened(path) == dataclasses.replace(FULL, running=9)


@pytest.mark.parametrize("content", [b"", b'{"epoch":5}'])
def test_a_file_without_a_whole_line_is_not_taken_for_a_new_one(tmp_path, content):
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(StateError, match="holds no whole line"):
        Journal(path)
    assert path.read_bytes() == content
