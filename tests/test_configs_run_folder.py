"""Event logs on a disk that fills up: what could not be written is said, and the next line is whole again."""

import errno
import json
import os

import pytest

from configs.run_folder import EventLog, RunFolder, read_events
from ops.launch.endpoints import Endpoints
from ops.launch.log import LauncherLog


class Disk:
    """Takes ``room`` more bytes of an event, then nothing."""

    def __init__(self, monkeypatch):
        self.room, self._write = None, os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd, data):
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = bytes(data)[: self.room]
        if self.room is not None:
            self.room -= len(part)
        return self._write(fd, part)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.mark.parametrize("room", [0, 9])
def test_an_event_that_cannot_be_written_raises_with_the_file_and_spoils_no_other(tmp_path, disk, room):
    path = tmp_path / "g0.jsonl"
    log = EventLog(path, group="g0", incarnation=1)
    log("commit", step=1)
    disk.room = room
    with pytest.raises(OSError, match="an event could not be written: No space left on device") as caught:
        log("commit", step=2)
    assert caught.value.filename == str(path)
    disk.room = None
    log("commit", step=3)
    assert [event["step"] for event in read_events(path)] == [1, 3]


def test_a_launcher_says_once_that_its_disk_is_full_and_goes_on(tmp_path, disk):
    said = []
    log = LauncherLog(tmp_path / "launcher.jsonl", say=said.append)
    disk.room = 0
    log("restart")
    log("restart")
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "launcher.jsonl" in said[0]
    disk.room = None
    log("exit")
    assert [event["event"] for event in read_events(tmp_path / "launcher.jsonl")] == ["exit"]


def test_addresses_that_cannot_be_kept_are_said_once_and_kept_again_later(tmp_path, monkeypatch):
    said, folder = [], RunFolder(tmp_path)
    endpoints = Endpoints(folder, run="r", say=said.append)

    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as disk:
        disk.setattr("ops.launch.endpoints.write_atomically", full)
        endpoints.set("g0", "http://127.0.0.1:1")
        endpoints.set("g1", "http://127.0.0.1:2")
    assert len(said) == 1
    assert said[0].endswith("cannot be kept true: No space left on device")
    endpoints.set("g2", "http://127.0.0.1:3")
    assert set(json.loads(folder.endpoints.read_text())) == {"g0", "g1", "g2"}
