"""Random walks of the protocol model, taken by the real gateway and its journal: the same answers at every grant."""

from __future__ import annotations

import asyncio
import random

import pytest

import lighthouse.quorums
import tests.protocol_model
from lighthouse.protos import torchft_pb2
from tests.protocol_words import FAULTS, RULES
from tests.support.gateway_walk import Walk


class PromptEngine:
    """Answers at once."""

    def __init__(self, torchft, *, members, quorum_id):
        self.members, self.quorum_id = members, quorum_id

    async def quorum(self, asked):
        return torchft_pb2.Quorum(quorum_id=self.quorum_id, participants=asked)

    async def close(self):
        pass


@pytest.fixture(autouse=True)
def prompt_engine(monkeypatch):
    monkeypatch.setattr(lighthouse.quorums, "Engine", PromptEngine)
    monkeypatch.setattr(tests.protocol_model, "rename", lambda state: state)  # ids stay as they are given


def walks(folder, *, groups, shared, seeds, events, kinds=FAULTS):
    grants = 0
    for seed in seeds:
        model = tests.protocol_model.Model(groups, 4, 10, dict.fromkeys(kinds, 10), shared, RULES, (), True)
        place = folder / str(seed)
        place.mkdir()

        async def one(model=model, place=place, seed=seed):
            walk = Walk(model, place)
            try:
                return await walk.go(random.Random(f"{groups} {shared} {seed}"), events=events)
            except AssertionError as error:
                raise AssertionError("\n".join([*walk.path, str(error)])) from error

        grants += asyncio.run(one())
    return grants


@pytest.mark.parametrize(("groups", "shared"), [(2, True), (2, False), (3, True)])
def test_the_gateway_walks_with_the_model(tmp_path, groups, shared):
    assert walks(tmp_path, groups=groups, shared=shared, seeds=range(40), events=120) > 100


@pytest.mark.long
@pytest.mark.parametrize(("groups", "shared"), [(2, True), (2, False), (3, True), (3, False)])
def test_the_gateway_walks_far_with_the_model(tmp_path, groups, shared):
    assert walks(tmp_path, groups=groups, shared=shared, seeds=range(1000, 1600), events=200) > 2000
