"""The live page in a real browser: a real run with a kill, and what else a page must bear."""

import pytest

from configs.words import SCRATCH, DepartureCause, Exit
from tests.support.browser import browser, needs_chromium
from tests.support.lighthouse import Stage, ask_all, committed, started

pytestmark = needs_chromium

WATCH = """
window.seen = [];
const note = (kind, text) => seen.push({kind, text, t: Date.now() / 1000});
new MutationObserver((changes) => {
  for (const change of changes) for (const node of change.addedNodes) note(node.dataset.kind, node.textContent);
}).observe(document.getElementById("events"), {childList: true});
new MutationObserver(() => {
  for (const row of document.getElementById("groups").rows) {
    const text = [...row.cells].slice(0, 2).map((cell) => cell.textContent).join(" ");
    if (seen.findLast((s) => s.kind === row.dataset.group)?.text !== text) note(row.dataset.group, text);
  }
}).observe(document.getElementById("groups"), {childList: true, subtree: true, characterData: true});
new MutationObserver(() => note("headline", document.getElementById("headline").textContent))
  .observe(document.getElementById("headline"), {childList: true, characterData: true, subtree: true});
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def fits(window):
    """No part of the page reaches beyond the screen."""
    right = "Math.max(...[...document.body.querySelectorAll('*')].map((e) => e.getBoundingClientRect().right))"
    edge, page, screen = window.run(f"return [{right}, document.documentElement.scrollWidth, innerWidth]")
    return edge <= screen + 0.5 and page <= screen


def test_a_kill_a_heal_and_a_return_are_seen_as_they_happen(rig, window):
    def hear(line):
        if "watch the run at" in line:  # nothing of the run has begun
            window.driver.get(line.rpartition(" ")[2])
            window.until("document.getElementById('link').dataset.link === 'live'")
            window.run(WATCH)

    run = rig.run_config(rig.config("page", steps=60, chaos__failpoints=["g1:backward@15#0:kill"]), hear=hear)
    assert run.code == Exit.DONE, run.said
    window.until("document.getElementById('link').dataset.link === 'lost'")
    seen = window.run("return seen")
    in_words = [(note["kind"], note["text"]) for note in seen]

    first = {kind: i for i, (kind, _) in reversed(list(enumerate(in_words)))}
    assert first["departure"] < first["heal"] < first["back"] < first["end"], in_words
    assert in_words[first["departure"]][1].startswith(tuple("0123456789"))
    assert "g1.1 is gone: killed" in in_words[first["departure"]][1]
    assert "SIGKILL" in in_words[first["departure"]][1]
    assert "g1 heals from g0" in in_words[first["heal"]][1]
    assert "g1 is back and trains" in in_words[first["back"]][1]
    assert first["discard"] > first["departure"], "the survivor's attempt was lost with g1"

    states = [text for kind, text in in_words if kind == "g1"]
    assert "g1.2 training" in states, states
    assert {"g1.1 gone", "g1.2 starting", "g1.2 healing"} & set(states[: states.index("g1.2 training")]), states
    lines = [text for kind, text in in_words if kind == "headline"]
    assert any(line.startswith("1 of 2 groups trains") for line in lines), lines
    assert lines[-1] == "The run has ended at step 60"

    moments = {e["group"]: e["t"] for e in run.events("lighthouse", "departure") if e["cause"] != "left"}
    ended = run.events("lighthouse", "end")[0]["t"]
    assert moments["g1"] < seen[first["departure"]]["t"] < ended, "it was seen while the run went on"
    assert seen[first["back"]]["t"] < ended

    assert window.text("#step") == "60"
    assert int(window.text("#discards")) >= 1
    assert window.texts("#groups .state") == ["done", "done"]
    marks = window.run("return [...document.querySelectorAll('[data-lane=g1] .glyph')].map((e) => e.className)")
    assert "glyph departure" in marks
    bars = window.run("return [...document.querySelectorAll('[data-lane=g1] .seg')].map((e) => e.className)")
    assert {"seg training", "seg healing"} <= set(bars)
    assert "g1.1 is gone: killed" in window.run("return document.querySelector('[data-lane=g1] .track').ariaLabel")
    assert "The run has ended, and its lighthouse has stopped" in window.text("#lost")
    window.look()
    assert [error for error in window.errors if "ERR_CONNECTION_REFUSED" not in error] == []
    window.errors.clear()


def test_texts_from_outside_are_shown_and_never_obeyed(stage, window):
    evil = "<img src=x onerror='window.evil = 1'><script>window.evil = 1</script>"
    _, g1, _ = started(stage, run=evil)
    g1.control.leave("g1", 1, cause=DepartureCause.KILLED, reason=evil)
    window.driver.get(stage.lighthouse.http_url)
    window.until("document.querySelector('#events li[data-kind=departure]') !== null")
    assert window.text("#run") == evil
    assert evil in window.text("#events li[data-kind=departure] .why")
    assert window.run("return window.evil") is None
    assert window.run("return document.images.length + document.querySelectorAll('body script').length") == 0
    g1.control.kill("g0", reason="\x00\u202e" + "long " * 200)
    window.until("document.getElementById('headline').textContent === 'No group is alive'")
    for width in (360, 1280):
        window.show(width=width)
        window.until("document.readyState === 'complete'")
        assert fits(window)
    window.look()
    assert (window.errors, window.hosts & {"x"}) == ([], set())


def test_light_and_dark_on_a_phone_and_a_desk(stage, window):
    names = [f"g{i}" for i in range(11)]
    toys = [
        stage.toy(name, groups=11)
        for name in (*names[:10], "a-group-with-a-rather-long-name-of-sixty-characters-in-one-word")
    ]
    ask_all(*((toy, SCRATCH, True) for toy in toys))
    window.driver.get(stage.lighthouse.http_url)
    window.until("document.querySelectorAll('#lanes .lane').length === 12")
    shades = {}
    for dark in (False, True):
        for width in (360, 768, 1280):
            window.show(width=width, dark=dark)
            assert fits(window), (width, dark)
        light = window.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        ink = window.run("return getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
        shades[dark] = (sum(light), sum(ink))
    assert shades[False][0] > 600 > 200 > shades[False][1]
    assert shades[True][0] < 200 < 600 < shades[True][1]
    assert window.texts("#groups th span:first-child")[:4] == [
        "a-group-with-a-rather-long-name-of-sixty-characters-in-one-word",
        "g0",
        "g1",
        "g2",
    ]
    assert window.run("return [...document.querySelectorAll('h1, h2, h3')].every((e) => e.textContent.trim())")
    assert window.run("return document.querySelectorAll('#groups th[scope=row]').length") == 11
    assert window.run("return document.getElementById('events').getAttribute('aria-live')") == "polite"
    window.look()
    assert window.errors == []


def test_a_lost_lighthouse_is_told_and_its_successor_taken_up(stage, window):
    g0, g1, first = started(stage)
    window.driver.get(stage.lighthouse.http_url)
    window.until("document.getElementById('link').dataset.link === 'live'")
    epoch = window.text("#epoch")
    http, gateway = stage.lighthouse.http_url.removeprefix("http://"), stage.lighthouse.url.removeprefix("http://")
    stage.lighthouse.stop()
    window.until("document.getElementById('link').dataset.link === 'lost'")
    assert window.text("#lost").startswith("No connection to the lighthouse since")
    assert window.run("return document.getElementById('lost').offsetHeight > 0")
    stage.lighthouse = type(stage.lighthouse)(stage.folder, bind=gateway, http=http)
    window.until("document.getElementById('link').dataset.link === 'live'")
    assert window.run("return document.getElementById('lost').hidden")
    assert window.text("#epoch") != epoch
    ask_all((g0, committed(first), False), (g1, committed(first), False))
    window.until("document.getElementById('step').textContent === '1'")
    assert "lighthouse" in window.run("return [...document.querySelectorAll('#events li')].map((e) => e.dataset.kind)")
    window.look()
    window.errors.clear()  # the browser itself tells of the refused connections


def test_nothing_was_asked_of_anybody_else(window):
    window.look()
    assert window.hosts, "the pages above were loaded"
    assert {host.rpartition(":")[0] for host in window.hosts} == {"127.0.0.1"}
