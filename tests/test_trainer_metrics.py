"""The metrics of a group are what its event log says, across incarnations."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from configs.run_folder import EventLog, read_events
from tests.support.logs import commit
from trainer.metrics import GroupMetrics, serve

NAMES = {
    "phalanx_step",
    "phalanx_commits_total",
    "phalanx_orphaned_total",
    "phalanx_discards_total",
    "phalanx_tokens_total",
    "phalanx_group_tokens_total",
    "phalanx_tokens_per_second",
    "phalanx_loss",
    "phalanx_grad_norm",
    "phalanx_learning_rate",
    "phalanx_phase_seconds_total",
    "phalanx_heals_total",
    "phalanx_heal_bytes_total",
    "phalanx_heal_seconds_total",
    "phalanx_checkpoints_total",
    "phalanx_checkpoint_seconds_total",
    "phalanx_checkpoint_stall_seconds_total",
    "phalanx_checkpoint_last_step",
    "phalanx_divergences_total",
    "phalanx_last_commit_timestamp_seconds",
    "phalanx_step_seconds_bucket",
    "phalanx_step_seconds_count",
    "phalanx_step_seconds_sum",
}
LOG = [
    commit(1, {"g0": [0, 1], "g1": [2]}, tokens=30, grad_norm=0.5, lr=1e-3, phases={"compute": 0.25, "vote": 0.25}),
    {"t": 1.5, "event": "discard", "reason": "peer_lost", "phases": {"discarded": 2.0}},
    commit(2, {"g0": [3, 4, 5]}, tokens=30, grad_norm=0.25, lr=2e-3, phases={"compute": 0.5}),
    {"t": 2.5, "event": "orphaned", "step": 2, "lineage": "2:1.2"},
    {"t": 3.0, "event": "heal", "step": 1, "sources": ["g1"], "bytes": 640, "seconds": 0.5},
    {
        "t": 3.1,
        "event": "checkpoint",
        "step": 1,
        "status": "saved",
        "bytes": 9,
        "seconds": 0.25,
        "stall_seconds": 0.125,
    },
    {"t": 3.2, "event": "checkpoint", "step": 2, "status": "skipped", "seconds": None},
    {"t": 3.3, "event": "divergence", "step": 2, "groups": ["g1"], "tensors": []},
    {"t": 3.4, "event": "start"},
]


def values(metrics: GroupMetrics) -> dict[str, float]:
    """Every sample by name and its own labels; ``_created`` left out."""
    from prometheus_client import generate_latest

    found: dict[str, float] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            assert (sample.labels.pop("run"), sample.labels.pop("group")) == ("test", "g0")
            assert "job" not in sample.labels
            if not sample.name.endswith("_created"):
                found[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return found


def group(*events: dict) -> GroupMetrics:
    made = GroupMetrics(run="test", group="g0")
    for event in events:
        made.observe(event)
    return made


def test_events_are_counted():
    found = values(group(*LOG))
    expected = {
        "phalanx_step": 2,
        "phalanx_commits_total updated": 2,
        "phalanx_discards_total peer_lost": 1,
        "phalanx_orphaned_total": 1,
        "phalanx_tokens_total": 60,
        "phalanx_group_tokens_total": 30 * 2 / 3 + 30,
        "phalanx_tokens_per_second": 60,
        "phalanx_loss": 8,
        "phalanx_grad_norm": 0.25,
        "phalanx_learning_rate": 2e-3,
        "phalanx_step_seconds_count": 2,
        "phalanx_phase_seconds_total compute": 0.75,
        "phalanx_phase_seconds_total vote": 0.25,
        "phalanx_phase_seconds_total discarded": 2,
        "phalanx_heals_total": 1,
        "phalanx_heal_bytes_total": 640,
        "phalanx_heal_seconds_total": 0.5,
        "phalanx_checkpoints_total saved": 1,
        "phalanx_checkpoints_total skipped": 1,
        "phalanx_checkpoint_seconds_total": 0.25,
        "phalanx_checkpoint_stall_seconds_total": 0.125,
        "phalanx_checkpoint_last_step": 1,
        "phalanx_divergences_total": 1,
        "phalanx_last_commit_timestamp_seconds": 2,
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)


def test_names_are_those_dashboards_rely_on():
    assert {name.split()[0] for name in values(group(*LOG))} == NAMES


def test_what_is_not_known_is_absent_not_zero():
    assert set(values(group())) == set()
    skipped = commit(1, {"g0": [0]}, outcome="skipped", loss=None, grad_norm=None, lr=1e-3)
    found = values(group(skipped))
    assert "phalanx_loss" not in found
    assert "phalanx_grad_norm" not in found
    assert found["phalanx_commits_total skipped"] == 1


@pytest.mark.parametrize("died_after", range(len(LOG)))
def test_counters_go_on_across_incarnations(tmp_path, died_after):
    """The successor of a group starts from its group's log, wherever the predecessor died."""
    path = tmp_path / "g0.jsonl"
    log = EventLog(path, group="g0", incarnation=1)
    for event in LOG[:died_after]:
        log(event["event"], **{k: v for k, v in event.items() if k != "event"})
    successor = GroupMetrics(run="test", group="g0")
    successor.replay(read_events(path))
    for event in LOG[died_after:]:
        successor.observe(event)
    assert values(successor) == values(group(*LOG))


def test_groups_of_one_process_do_not_share_a_registry():
    one, other = group(*LOG), group()
    assert values(one)
    assert not values(other)


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health_are_served_on_the_host_they_are_told():
    url = serve(group(*LOG).registry, host="127.0.0.1", port=0, warn=print)
    code, text = fetched(f"{url}/metrics")
    assert code == 200
    assert 'phalanx_step{group="g0",run="test"} 2.0' in text
    assert fetched(f"{url}/healthz") == (200, "ok\n")
    assert fetched(f"{url}/other")[0] == 404
    assert url.startswith("http://127.0.0.1:")


def test_taken_port_is_a_warning_and_a_free_one_is_used():
    warnings: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        url = serve(group(*LOG).registry, host="127.0.0.1", port=port, warn=warnings.append)
    assert fetched(f"{url}/healthz")[0] == 200
    assert not url.endswith(f":{port}")
    assert len(warnings) == 1
    assert str(port) in warnings[0]
