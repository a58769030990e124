"""How a rank's attempts end: one closing quorum, a drain at a commit boundary, and who publishes the last state."""

from __future__ import annotations

import pytest

from checkpointing.errors import CheckpointError
from configs.protocol import Kind, Notice
from configs.words import Exit, ExitRequest, Lineage
from tests.support.grants import EPOCH, death, grant
from tests.support.training import Rig, rig, world_of_one


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


def test_standing_says_that_the_run_is_at_its_end():
    made = rig(steps=1)
    made.attempt(2)
    assert [standing.finished for standing in made.seat.standings] == [False, True]


def test_drain_is_asked_for_at_the_next_agreement():
    made = rig()
    made.attempt()
    made.parts.signals.drain()
    made.attempt()
    assert [standing.drain for standing in made.seat.standings] == [False, True]


def closing(made: Rig, *groups: str, kind: Kind = Kind.CLOSING) -> None:
    lineage = made.state.clocks.lineage
    made.seat.grants = [grant(*groups, attempt=9, kind=kind, current=lineage)]


def test_first_of_the_closing_quorum_publishes_and_reports_the_end():
    made = rig()
    made.attempt()
    closing(made, "g0", "g1")
    lineage = made.state.clocks.lineage
    made.parts.signals.notice(Notice(epoch=EPOCH, ended=lineage))
    with pytest.raises(ExitRequest) as caught:
        made.attempt()
    assert caught.value.code is Exit.DONE
    assert made.disk.told[-2:] == [("confirm", lineage), ("save_last", lineage)]
    assert made.ended == [lineage]


def test_others_of_the_closing_quorum_wait_for_the_end():
    made = rig()
    made.attempt()
    closing(made, "g1", "g0")
    made.parts.signals.notice(Notice(epoch=EPOCH, ended=Lineage(1, 1)))
    with pytest.raises(ExitRequest) as caught:
        made.attempt()
    assert caught.value.code is Exit.DONE
    assert made.ended == []
    assert "save_last" not in [told[0] for told in made.disk.told]


def test_closing_quorum_that_falls_apart_is_discarded_and_asked_for_again():
    made = rig()
    made.attempt()
    closing(made, "g1", "g0")
    made.parts.signals.notice(death("g1"))
    made.attempt()
    assert made.named("discard")[0]["reason"] == "peer_lost"


def test_released_group_leaves_with_75():
    made = rig()
    made.attempt()
    closing(made, "g0", kind=Kind.RELEASE)
    with pytest.raises(ExitRequest) as caught:
        made.attempt()
    assert caught.value.code is Exit.DRAINED
    assert made.disk.told[-1] == ("drain",)


def test_last_group_that_is_drained_saves_first():
    made = rig()
    made.attempt()
    closing(made, "g0", kind=Kind.LEAVE)
    with pytest.raises(ExitRequest) as caught:
        made.attempt()
    assert caught.value.code is Exit.DRAINED
    assert made.disk.told[-1] == ("save_last", made.state.clocks.lineage)
    assert made.ended == []


@pytest.mark.parametrize("kind", [Kind.CLOSING, Kind.LEAVE])
def test_an_export_comes_between_the_last_save_and_the_end_and_not_with_a_drain(kind):
    made = rig()
    made.attempt()
    closing(made, "g0", kind=kind)
    lineage = made.state.clocks.lineage
    seen = []
    made.state.export = lambda tensors, clocks: seen.append((clocks.lineage, made.disk.told[-1][0], list(made.ended)))
    made.parts.signals.notice(Notice(epoch=EPOCH, ended=lineage))
    with pytest.raises(ExitRequest):
        made.attempt()
    assert seen == ([(lineage, "save_last", [])] if kind is Kind.CLOSING else [])


def test_a_run_whose_export_fails_has_not_ended():
    made = rig()
    made.attempt()
    closing(made, "g0")

    def export(tensors, clocks):
        raise CheckpointError("no space")

    made.state.export = export
    with pytest.raises(CheckpointError):
        made.attempt()
    assert made.ended == []
