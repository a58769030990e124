"""A heal from several sources, over several connections at once."""

from __future__ import annotations

import pytest

from checkpointing.errors import TransferError
from tests.support.states import same, tensors
from tests.support.transfers import CHUNK, ROWS, Healer, serving


@pytest.fixture
def serve():
    yield from serving()


@pytest.fixture
def state():
    return tensors(1, ROWS)


def test_sources_that_disagree_are_not_mixed(serve, state):
    """One of them is taken, whole, and the other is named, with the tensors that differ."""
    other = {**state, "model.half": state["model.half"] + 1}
    size = sum(tensor.nbytes for tensor in state.values())
    # Slow enough that neither has given all before the other is asked.
    sources = {serve(held, rate_limit=2 * size).address: held for held in (state, other)}
    healer = Healer(state)
    received = healer.fetch(*sources)
    [taken] = received.sources
    assert same(healer.tensors, sources.pop(taken))
    assert received.differing == {next(iter(sources)): ("model.half",)}


def test_two_sources_share_the_work(serve, state):
    """Each of two paced sources gives about half, so it takes about half as long as from one."""
    size = sum(tensor.nbytes for tensor in state.values())
    pair = [serve(state, rate_limit=2 * size).address for _ in range(2)]
    healer = Healer(state)
    both = healer.fetch(*pair)
    assert same(healer.tensors, state)
    assert both.sources == tuple(pair)
    alone = Healer(state).fetch(serve(state, rate_limit=2 * size).address)
    assert alone.seconds >= 0.5 * (1 - 2 * CHUNK / size)
    assert both.seconds < alone.seconds


def test_progress_is_told_up_to_the_last_byte(serve, state):
    told = []
    size = sum(tensor.nbytes for tensor in state.values())
    Healer(state).fetch(serve(state).address, progress=lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {size}
    assert sorted(done for done, _ in told)[-1] == size
    assert len(told) == len({done for done, _ in told})


def test_what_a_callback_raises_is_raised(serve, state):
    def fails(name: str, **context) -> None:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match="heal_recv"):
        Healer(state).fetch(serve(state).address, failpoint=fails)


@pytest.mark.parametrize(("secret", "kind"), [(None, "xxh3_128"), (b"key", "blake3")])
def test_with_a_secret_the_digests_are_of_the_kind_that_cannot_be_forged(serve, state, secret, kind, monkeypatch):
    kinds = []
    monkeypatch.setattr("checkpointing.fetch.chunk_digest", lambda data, *, kind: kinds.append(kind) or "")
    with pytest.raises(TransferError, match="wrong digest"):
        Healer(state).fetch(serve(state, secret=secret).address, secret=secret)
    assert set(kinds) == {kind}
