"""The loader: the same batches with and without workers, whatever is planned, dropped, killed or begun again."""

from __future__ import annotations

import multiprocessing
import os
import signal

import psutil
import pytest

from tests.support.data import make_batches, make_store, write_corpus
from trainer.data.loader import Loader

TOTAL = 24
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["trainer.data.workers"])


def rank(batches, first, pipe):
    """A rank that reads from microbatch ``first`` to the end of the data and tells what it got."""
    loader = Loader(batches, workers=2, prefetch=4, log=print)
    loader.wait_until_ready()
    pipe.send(loader.worker_pids)
    for m in range(first, TOTAL // 2):
        loader.plan(range(m, TOTAL // 2))
        batch = loader.get(m)
        pipe.send((m, content(batch), loader.in_flight))
        pipe.recv()
    pipe.send(None)
    loader.close()


def content(batch):
    return batch.valid, batch.tokens.tolist(), batch.labels.tolist()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def batches(corpus, cache):
    return make_batches(make_store(corpus, cache))


@pytest.fixture(scope="module")
def loader(batches):
    """Two workers, started once; each test leaves an empty plan."""
    said = []
    loader = Loader(batches, workers=2, prefetch=4, log=said.append)
    loader.wait_until_ready()
    yield loader
    loader.close()
    assert said == []


def same(batch, batches):
    expected = batches[batch.microbatch].batch(batch.microbatch)
    return (batch.tokens == expected.tokens).all() and (batch.labels == expected.labels).all()


@pytest.mark.parametrize("asked", [[0, 1, 2], [2, 0, 1], [7], [1, 1, 2], []])
def test_without_workers(batches, asked):
    loader = Loader(batches, log=print)
    loader.plan([0, 1, 2])
    assert [loader.get(m).microbatch for m in asked] == asked
    assert all(same(loader.get(m), batches) for m in asked)
    assert set(loader.held) == set(asked) - {7}
    assert loader.worker_pids == loader.in_flight == ()


def test_with_workers(loader, batches):
    loader.plan(range(20))
    assert loader.in_flight == tuple(range(8))
    for m in range(20):
        batch = loader.get(m)
        assert batch.microbatch == m
        assert same(batch, batches)
    assert loader.in_flight == ()
    loader.plan([])


def test_discarded_attempt_reads_nothing_twice(loader):
    loader.plan([3, 4, 5])
    first = [loader.get(m) for m in (3, 4, 5)]
    loader.plan([3, 4, 5])
    assert loader.in_flight == ()
    assert all(a is loader.get(a.microbatch) for a in first)
    loader.plan([])
    assert loader.held == ()


def test_new_plan_drops_what_it_does_not_need(loader, batches):
    """A quorum changed: some microbatches went to others, some came, some stay."""
    loader.plan(range(100, 120))
    loader.get(100)
    loader.plan([101, 102, 300, 301])
    assert loader.held == ()
    assert loader.in_flight[:2] == (101, 102)
    assert all(same(loader.get(m), batches) for m in (101, 102, 300, 301))
    assert loader.held == (101, 102, 300, 301)
    loader.plan(range(400, 420))
    loader.plan([500])
    assert loader.in_flight == (500,)
    assert loader.held == ()
    assert same(loader.get(500), batches)
    loader.plan([])


def test_unplanned_microbatch_is_read_and_not_kept(loader, batches):
    loader.plan([1])
    assert same(loader.get(77), batches)
    assert 77 not in loader.held
    loader.plan([])


def test_workers_outlive_the_signals_of_a_drain(loader, batches):
    for pid in loader.worker_pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    loader.plan(range(30, 50))
    assert all(same(loader.get(m), batches) for m in range(30, 50))
    assert len(loader.worker_pids) == 2
    loader.plan([])


def test_lost_workers_cost_no_sample(batches):
    said = []
    loader = Loader(batches, workers=1, prefetch=2, log=said.append)
    loader.wait_until_ready()
    loader.plan(range(10))
    assert same(loader.get(0), batches)
    (worker,) = loader.worker_pids
    os.kill(worker, signal.SIGKILL)
    psutil.Process(worker).wait(timeout=30)
    assert all(same(loader.get(m), batches) for m in range(10))
    assert "reading in the training thread" in said[0]
    loader.close()


def start_rank(batches, first):
    mine, its = CONTEXT.Pipe()
    process = CONTEXT.Process(target=rank, args=(batches, first, its))
    process.start()
    its.close()
    return process, mine


def test_killed_rank_loses_no_sample(corpus, cache):
    """2 workers, 4 batches ahead each, SIGKILL: its workers die too; a successor reads the rest in the same order."""
    batches = make_batches(make_store(corpus, cache), total=TOTAL)
    process, pipe = start_rank(batches, 0)
    workers = [psutil.Process(pid) for pid in pipe.recv()]
    assert len(workers) == 2
    read = []
    for _ in range(5):
        microbatch, got, in_flight = pipe.recv()
        read.append((microbatch, got))
        pipe.send("go on")
    assert in_flight
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    psutil.wait_procs(workers, timeout=30)
    assert not [worker for worker in workers if worker.is_running()]
    successor, pipe = start_rank(batches, 5)
    pipe.recv()
    while (message := pipe.recv()) is not None:
        read.append(message[:2])
        pipe.send("go on")
    successor.join()
    assert successor.exitcode == 0
    assert read == [(m, content(batches[m].batch(m))) for m in range(TOTAL // 2)]
