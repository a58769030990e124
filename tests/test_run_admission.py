"""A run with a secret, beside which everybody comes who does not belong: each is refused with the reason, and the run
does not even notice."""

from __future__ import annotations

import pytest

from configs.secret import is_loopback
from configs.words import Exit
from tests.support.field import Field, one_history, wait_until
from tests.support.strangers import (
    SECRET,
    ports_of,
    run_with_other_bits,
    run_with_other_library,
    run_with_other_secret,
    run_with_secret,
    throw_garbage,
)


@pytest.fixture(scope="module")
def undisturbed(rig):
    """The digests of a run that nothing disturbs, by step."""
    with Field(rig, "admission-alone", groups=1) as field:
        field.start("g0")
        field.wait_commit("g0", step=80)
        return field.drain().series("digest")


@pytest.fixture
def field(rig, request, monkeypatch):
    """Two groups that train, with a secret."""
    monkeypatch.setenv("PHALANX_SECRET", SECRET)
    with Field(rig, request.node.name) as field:
        field.start("g0", "g1", function=run_with_secret)
        for group in ("g0", "g1"):
            field.wait_commit(group, step=3)
        yield field


def end_of(field, group):
    """How a group ended for good."""
    return wait_until(lambda: next((end for end in field.ends if end.group == group), None), group, field.said)


def unnoticed(field, undisturbed):
    """The run went on as if nobody had come, and ends in order."""
    last = max(e["step"] for e in field.events("g0", "commit"))
    field.wait_commit("g1", step=last + 3)
    run = field.drain()
    one_history(run, undisturbed)
    assert run.logs.groups == ("g0", "g1") or [g for g in run.logs.groups if run.events(g, "commit")] == ["g0", "g1"]
    for group in ("g0", "g1"):
        assert run.events(group, "discard") == []
        assert {e["incarnation"] for e in run.events(group, "commit")} == {1}
        assert all(e["participants"] == ["g0", "g1"] for e in run.events(group, "commit")[3:-3])
    return run


def test_groups_that_do_not_belong_end_with_2_and_the_run_does_not_notice(rig, field, undisturbed):
    second = field.config.model_copy(
        update={
            "job": field.config.job.model_copy(update={"name": "second"}),
            "optimizer": field.config.optimizer.model_copy(update={"lr": 0.5}),
        }
    )
    field.start("g2", function=run_with_other_secret)
    field.start("g3", function=run_with_other_library)
    field.start("g4", function=run_with_other_bits)
    field.start("g5", function=run_with_secret, config=second)
    expected = {
        "g2": ["shared secret (PHALANX_SECRET)"],
        "g3": ["numpy is 1.26", "CPU capability is DEFAULT"],
        "g4": ["golden digest is", "as of g0, g1"],
        "g5": [
            "run is 'second', not 'rig'",
            "config_digest is",
            "keys that differ: optimizer.lr",
            "trained here with other terms",
        ],
    }
    for group, texts in expected.items():
        end = end_of(field, group)
        assert (end.code, end.ends_run) == (Exit.BAD_CONFIG, True), end
        for text in texts:
            assert text in end.reason, end
    departures = {e["group"]: e["cause"] for e in field.events("lighthouse", "departure")}
    assert departures == {"g4": "refused"}, "the others were never admitted"
    assert {e["group"] for e in field.events("lighthouse", "refusal")} == {"g3", "g4", "g5"}
    unnoticed(field, undisturbed)


def test_garbage_at_every_port_of_the_run_goes_unnoticed(rig, field, undisturbed):
    pids = [field.lighthouse.pid, *field.pids("g0"), *field.pids("g1")]
    addresses = ports_of(pids)
    assert len(addresses) >= 2 + 2 * 4, addresses  # gateway and page; states, metrics, manager, stores
    assert [host for host, _ in addresses if not is_loopback(host)] == []
    held = throw_garbage(addresses)
    step = max(e["step"] for e in field.events("g0", "commit"))
    field.wait_commit("g0", step=step + 10)
    for line in held:
        line.close()
    unnoticed(field, undisturbed)
