"""The live page's HTTP side over real sockets: its files, its stream, and readers that are slow, many, rude or dead."""

import hashlib
import json
import re
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from configs.words import DepartureCause
from lighthouse import feed, page
from tests.support.lighthouse import LIMIT_S, Stage, ask_all, committed, started, wait_until

OURS = {path: make() for path, make in page.pages().items() if not path.startswith("/uplot/")}


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()


class Reader:
    """One who looks at /events."""

    def __init__(self, stage, *, small=False):
        where = urlsplit(stage.lighthouse.http_url)
        self.socket = socket.socket()
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect((where.hostname, where.port))
        self.socket.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 1-1\r\n\r\n")
        self.file = self.socket.makefile("rb")

    def head(self):
        status = self.file.readline().decode().strip()
        return status, list(iter(lambda: self.file.readline().decode().strip(), ""))

    def message(self):
        """The next (event, document, id); None once the stream has ended."""
        fields = {}
        while line := self.file.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "data":
                fields[name] = json.loads(value)
            elif name:
                fields[name] = value
            elif "event" in fields:
                return fields["event"], fields["data"], fields.get("id")
        return None

    def until(self, wanted):
        """Messages up to the one of which ``wanted`` is true."""
        found = []
        while (message := self.message()) is not None:
            found.append(message)
            if wanted(message[1]):
                return found
        raise AssertionError("the stream has ended")

    def close(self):
        self.file.close()
        self.socket.close()


def told(document):
    return [item[2] for item in document.get("told", [])]


def test_its_files_are_served_with_guards_and_name_nothing_elsewhere(stage):
    for path in page.pages():
        with urllib.request.urlopen(stage.lighthouse.http_url + path, timeout=LIMIT_S) as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert answer.read() == page.pages()[path]().body
    for path, file in OURS.items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]|innerHTML|insertAdjacentHTML|document\.write|eval\(", text), path
    html = OURS["/"].body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", html), "the guard forbids inline code"
    linked = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert {path for path in linked if "." in path} - {"/status.json"} <= set(page.pages())


def test_the_chart_library_is_as_published():
    folder = page.FOLDER / "uplot"
    listed = re.findall(r"^    (\w{64})  (\S+)$", (folder / "VERSION.md").read_text(), re.MULTILINE)
    assert {name for _, name in listed} == {"LICENSE", "uPlot.iife.min.js", "uPlot.min.css"}
    for digest, name in listed:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/events", "/status.json"])
def test_they_can_only_be_read(stage, method, path):
    request = urllib.request.Request(stage.lighthouse.http_url + path, method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=LIMIT_S)
    assert refused.value.code == 405


def test_the_whole_first_then_the_news(stage):
    g0, g1, first = started(stage)
    reader = Reader(stage)
    status, headers = reader.head()
    assert (status, "Content-Type: text/event-stream" in headers) == ("HTTP/1.1 200 OK", True)
    name, whole, identity = reader.message()
    assert (name, told(whole)) == ("whole", ["lighthouse", "join", "join", "quorum"])
    assert (whole["head"]["run"], whole["head"]["text"]) == ("test", "2 of 2 groups train · step 0 of 100 · attempt 1")
    assert [(row["group"], row["incarnation"], row["lane"]) for row in whole["rows"]] == [
        ("g0", 1, "training"),
        ("g1", 1, "training"),
    ]
    assert int(identity.partition("-")[0]) == whole["head"]["epoch"]
    ask_all((g0, committed(first), False), (g1, committed(first), False))
    news = reader.until(lambda document: document.get("head", {}).get("granted", "0").startswith("1:"))
    assert not any(told(document) for _, document, _ in news), "a step is no event"
    g1.control.leave("g1", 1, cause=DepartureCause.KILLED, reason="<b>signal 9</b>")
    (*_, (_, last, _)) = reader.until(lambda document: "departure" in told(document))
    assert last["told"][0][3:] == ["g1.1 is gone: killed", "<b>signal 9</b>"]
    reader.close()


def test_a_restarted_lighthouse_knows_the_hour_and_the_reader_gets_it(stage):
    g0, g1, first = started(stage)
    g1.control.leave("g1", 1, cause=DepartureCause.KILLED, reason="signal 9")
    g0.ask(committed(first))
    before = Reader(stage)
    epoch = before.until(lambda document: "head" in document)[0][1]["head"]["epoch"]
    stage.restart()
    while before.message() is not None:
        pass  # the old stream ends
    after = Reader(stage)
    ((_, whole, _),) = after.until(lambda document: "head" in document)
    assert whole["head"]["epoch"] > epoch
    assert told(whole) == ["lighthouse", "join", "join", "quorum", "departure", "quorum", "lighthouse"]
    assert [move[3] for move in whole["moves"] if move[2] == "g0"] == ["starting", "training", "unseen"]
    for reader in (before, after):
        reader.close()


def test_the_last_word_is_the_end(stage):
    g0 = stage.toy("g0", groups=1)
    first = g0.ask(void=True)
    reader = Reader(stage)
    reader.until(lambda document: "head" in document)
    g0.ask(committed(first), finished=True)
    g0.control.report("g0", 1, ended=committed(first))
    wait_until(lambda: stage.events("end"))
    stage.lighthouse.stop()
    assert reader.until(lambda document: "end" in told(document))
    reader.close()


def test_readers_over_the_limit_get_503_until_one_is_gone(stage, monkeypatch):
    monkeypatch.setattr(feed, "CLIENTS", 3)
    readers = [Reader(stage) for _ in range(3)]
    for reader in readers:
        assert reader.head()[0] == "HTTP/1.1 200 OK"
    one_more = Reader(stage)
    status, headers = one_more.head()
    assert (status, "Retry-After: 5" in headers) == ("HTTP/1.1 503 Service Unavailable", True)
    readers[0].close()  # it dies: its place is free at once
    wait_until(lambda: feed_of(stage).readers == 2)
    readers.append(Reader(stage))
    assert readers[-1].head()[0] == "HTTP/1.1 200 OK"
    readers[1].socket.sendall(b"GET / HTTP/1.1\r\n\r\n")  # readers of events have nothing to say
    wait_until(lambda: feed_of(stage).readers == 2)
    for reader in (*readers[1:], one_more):
        reader.close()
    wait_until(lambda: feed_of(stage).readers == 0)


def feed_of(stage):
    return stage.lighthouse.lighthouse._feed


def test_a_reader_that_stands_still_is_dropped_and_the_others_hear_everything(stage, monkeypatch):
    monkeypatch.setattr(feed, "BUFFER", 1 << 14)
    g0 = stage.toy("g0", groups=1)
    g0.ask(void=True)
    still, quick = Reader(stage, small=True), Reader(stage)
    assert still.head()[0] == quick.head()[0] == "HTTP/1.1 200 OK"
    assert feed_of(stage).readers == 2
    number, heard = 0, 0
    while feed_of(stage).readers == 2:
        for _ in range(100):
            number += 1
            stage.lighthouse.call(lambda n=number: record(stage, n))
        news = quick.until(lambda document: document.get("marks"))
        heard = max(mark[4] for _, document, _ in news for mark in document.get("marks", []))
        assert feed_of(stage).buffered <= 2 * (feed.BUFFER + (1 << 20))
    assert heard
    assert number < 100_000
    assert g0.control.status()["groups"], "the gateway goes on"
    for reader in (still, quick):
        reader.close()


def record(stage, number):
    who = {"group": "g0", "incarnation": 1}
    stage.lighthouse.lighthouse._chronicle("departure", **who, cause="hung", reason=f"{number:08} {'x' * 200}")


def test_a_broken_feed_lets_its_readers_go_and_serves_the_next(stage, monkeypatch):
    live = feed_of(stage)._source
    reader = Reader(stage)
    reader.until(lambda document: "head" in document)
    with monkeypatch.context() as broken:
        broken.setattr(live, "news", lambda: 1 / 0)
        while reader.message() is not None:
            pass
        wait_until(lambda: feed_of(stage).readers == 0)
    again = Reader(stage)
    assert again.until(lambda document: "head" in document)
    for one in (reader, again):
        one.close()


def test_a_request_line_is_read_and_nothing_else(stage):
    where = urlsplit(stage.lighthouse.http_url)
    for head in (b"garbage\r\n\r\n", b"GET /\r\n\r\n", b"GET /../server.py HTTP/1.1\r\n\r\n"):
        with socket.create_connection((where.hostname, where.port), timeout=LIMIT_S) as connection:
            connection.sendall(head)
            assert connection.makefile("rb").readline().split()[1] in (b"400", b"404")
