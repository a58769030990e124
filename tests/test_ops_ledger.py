"""The ledger against logs that tell the truth, and against logs that lie."""

from __future__ import annotations

import json

from ops.__main__ import main
from ops.history import confirmed_chain, digests, read_logs
from ops.ledger import read_ledger
from tests.support.logs import commit, confirmed, lineage, logs, write

# Two groups, M = 4: step s has microbatches 4(s-1) .. 4s-1.
HISTORY = [commit(s, {"g0": [4 * s - 4, 4 * s - 3], "g1": [4 * s - 2, 4 * s - 1]}) for s in range(1, 6)]
CHAIN = [confirmed(s) for s in range(1, 6)]


def changed(step: int, **fields):
    return [event | fields if event["step"] == step else event for event in HISTORY]


def test_a_true_history_holds():
    ledger = read_ledger(logs(CHAIN, g0=HISTORY, g1=HISTORY))
    assert ledger.holds
    assert (ledger.steps, ledger.samples, ledger.microbatches) == (5, 40, 20)
    assert (ledger.missing, ledger.duplicated, ledger.order_matches, ledger.orphaned) == (0, 0, True, 0)


def resumed(step: int, ids: list[int], *, samples: int):
    return commit(step, {"g0": ids}, samples=samples)


def test_a_run_that_goes_on_in_microbatches_of_another_size_holds():
    """Five steps of 4 x 2 samples, then steps of 2 x 4: the same 8 samples a step, from sample 40 on."""
    more = [resumed(6, [10, 11], samples=8), resumed(7, [12, 13], samples=8)]
    chain = [*CHAIN, confirmed(6), confirmed(7)]
    ledger = read_ledger(logs(chain, g0=[*HISTORY, *more]))
    assert ledger.holds, ledger.violations
    assert (ledger.samples, ledger.microbatches, ledger.missing, ledger.duplicated) == (56, 24, 0, 0)
    for ids in ([11, 12], [9, 10]):
        lied = [resumed(6, ids, samples=8), resumed(7, [12, 13], samples=8)]
        ledger = read_ledger(logs(chain, g0=[*HISTORY, *lied]))
        assert not ledger.holds
        assert not ledger.order_matches


def test_one_record_of_a_step_is_enough():
    ledger = read_ledger(logs(CHAIN, g0=HISTORY[:2], g1=HISTORY[2:]))
    assert ledger.holds


def test_a_share_that_nobody_computed_is_missing():
    events = changed(3, shares={"g0": [8, 9], "g1": [10]})
    ledger = read_ledger(logs(CHAIN, g0=events))
    assert not ledger.holds
    assert ledger.missing == 1
    assert not ledger.order_matches  # step 4 begins one too late


def test_a_confirmed_step_without_any_record_is_missing():
    ledger = read_ledger(logs(CHAIN, g0=[e for e in HISTORY if e["step"] != 3]))
    assert ledger.missing == 4
    assert not ledger.holds
    assert any("no group's log has its commit" in violation for violation in ledger.violations)


def test_a_last_step_without_any_record_is_missing():
    ledger = read_ledger(logs(CHAIN, g0=HISTORY[:-1]))
    assert ledger.missing == 4


def test_a_microbatch_computed_twice_in_a_step_is_a_duplicate():
    ledger = read_ledger(logs(CHAIN, g0=changed(3, shares={"g0": [8, 9, 10], "g1": [10, 11]})))
    assert ledger.duplicated == 1
    assert not ledger.holds


def test_a_microbatch_computed_again_in_a_later_step_is_a_duplicate():
    ledger = read_ledger(logs(CHAIN, g0=changed(4, shares={"g0": [8, 9], "g1": [10, 11]})))
    assert ledger.duplicated == 4
    assert ledger.missing == 4
    assert not ledger.order_matches


def test_steps_that_swapped_their_microbatches_are_out_of_order():
    events = changed(3, shares=HISTORY[3]["shares"])
    events = [e | {"shares": HISTORY[2]["shares"]} if e["step"] == 4 else e for e in events]
    ledger = read_ledger(logs(CHAIN, g0=events))
    assert (ledger.missing, ledger.duplicated, ledger.order_matches) == (0, 0, False)
    assert not ledger.holds


def test_groups_that_tell_different_stories_of_one_lineage():
    ledger = read_ledger(logs(CHAIN, g0=HISTORY, g1=changed(2, shares={"g0": [4], "g1": [5, 6, 7]})))
    assert not ledger.holds
    assert any("disagree about its shares" in violation for violation in ledger.violations)


def test_digests_that_differ_between_groups():
    ledger = read_ledger(logs(CHAIN, g0=changed(2, digest="aa"), g1=changed(2, digest="bb")))
    assert not ledger.holds
    assert digests(logs(CHAIN, g0=changed(2, digest="aa"), g1=changed(2, digest="bb")))[1] is False


def test_a_share_of_a_healing_group_is_told():
    ledger = read_ledger(logs(CHAIN, g0=changed(2, healing=["g1"])))
    assert any("while healing" in violation for violation in ledger.violations)


def test_a_commit_that_others_did_not_confirm_is_orphaned_and_no_error():
    stray = commit(3, {"g0": [8, 9, 10, 11]}, lineage="3:1.99", t=2.9)
    ledger = read_ledger(logs(CHAIN, g0=HISTORY, g1=[*HISTORY[:2], stray]))
    assert ledger.holds
    assert ledger.orphaned == 1
    assert ledger.microbatches == 20


def test_the_newest_commit_of_a_running_job_is_provisional():
    ledger = read_ledger(logs(CHAIN[:4], g0=HISTORY))
    assert ledger.holds
    assert (ledger.steps, ledger.provisional, ledger.orphaned) == (4, 1, 0)


def test_an_orphaned_event_ends_the_hope():
    told = {"t": 9.0, "event": "orphaned", "step": 5, "lineage": lineage(5)}
    ledger = read_ledger(logs(CHAIN[:4], g0=[*HISTORY, told]))
    assert (ledger.provisional, ledger.orphaned) == (0, 1)


def test_a_rollback_cuts_the_chain_and_the_steps_are_taken_again():
    back = {"t": 5.6, "event": "rollback", "from": lineage(5), "to": lineage(3), "quorum_id": 77, "reason": "disk"}
    redone = [commit(s, HISTORY[s - 1]["shares"], lineage=f"{s}:2.{s}", t=6.0 + s) for s in (4, 5)]
    again = [confirmed(s, name=f"{s}:2.{s}") for s in (4, 5)]
    ledger = read_ledger(logs([*CHAIN, back, *again], g0=[*HISTORY, *redone]))
    assert ledger.holds
    assert (ledger.steps, ledger.microbatches, ledger.rolled_back, ledger.orphaned) == (5, 20, 2, 0)


def test_without_the_rollback_the_same_history_contradicts_itself():
    again = [confirmed(s, name=f"{s}:2.{s}") for s in (4, 5)]
    chain = confirmed_chain([*CHAIN, *again])
    assert len(chain.contradictions) == 2
    assert not read_ledger(logs([*CHAIN, *again], g0=HISTORY)).holds


def test_a_rollback_to_what_was_never_confirmed():
    back = {"t": 5.6, "event": "rollback", "to": "3:9.9"}
    assert confirmed_chain([*CHAIN, back]).contradictions


def test_a_lighthouse_that_tells_a_confirmation_twice():
    assert read_ledger(logs([*CHAIN[:3], CHAIN[2], *CHAIN[3:]], g0=HISTORY)).holds


def test_a_gap_in_the_confirmed_steps():
    assert not read_ledger(logs([*CHAIN[:2], *CHAIN[3:]], g0=HISTORY)).holds


def test_nothing_confirmed_proves_nothing():
    assert not read_ledger(logs([], g0=HISTORY)).holds


def test_the_command_reads_a_torn_log(tmp_path, capsys):
    write(tmp_path, "lighthouse", CHAIN)
    write(tmp_path, "g0", HISTORY, torn='{"t": 7.0, "event": "commit", "step": 6, "linea')
    assert main(["ledger", str(tmp_path)]) == 0
    assert "5 steps, 40 samples, missing 0, duplicated 0" in capsys.readouterr().out


def test_the_command_fails_where_it_does_not_hold(tmp_path, capfd):
    write(tmp_path, "lighthouse", CHAIN)
    write(tmp_path, "g0", HISTORY[1:])
    assert main(["ledger", str(tmp_path), "--json"]) == 1
    data = json.loads(capfd.readouterr().out)
    assert (data["missing"], data["order_matches"], data["exit"]) == (4, False, 1)


def test_reading_passes_over_a_line_torn_in_the_middle(tmp_path):
    write(tmp_path, "lighthouse", CHAIN)
    write(tmp_path, "g0", HISTORY[:2], torn='{"t": 7.0, "ev\n' + json.dumps(HISTORY[2]) + "\n")
    assert len(read_logs(tmp_path).of("g0", "commit")) == 3
