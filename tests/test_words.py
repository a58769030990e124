"""Lineages name states: their texts round-trip and order by step first."""

from configs.words import Lineage, join_quorum_id


def test_lineage_round_trips_through_event_and_folder_names():
    lineage = Lineage(12, join_quorum_id(epoch=1_700_000_000, running=7))
    assert str(lineage) == "12:1700000000.7"
    assert Lineage.parse(str(lineage)) == lineage
    assert lineage.folder == "step-00000012-1700000000.7"
    assert Lineage.parse_folder(lineage.folder) == lineage


def test_foreign_folder_names_are_not_ours():
    for name in (".step-00000012-1.7", "step-12-1.7", "step-00000012", "checkpoint", "step-00000012-1.7.bak"):
        assert Lineage.parse_folder(name) is None
