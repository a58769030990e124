"""The golden digest: the same wherever the same bits are computed, another where they are not, whatever came before."""

from __future__ import annotations

import pytest
import torch

import trainer.compute
from configs.load import parse_text
from tests.support.stand_ins import SHAPE, WORDS
from tests.support.training import rig, world_of_one
from trainer.voucher import compares_bits, golden_digest, machine, software


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


def golden(made, *, wanted: bool = True) -> str:
    with golden_digest(made.parts.reducer, wanted=wanted) as digest:
        made.parts.compute.rehearse(rows=SHAPE.samples, seq_len=SHAPE.seq_len, vocabulary=WORDS)
    return digest()


def test_it_is_the_same_in_every_group_and_incarnation_whatever_was_drawn_before():
    expected = golden(rig())
    torch.rand(17)
    again = rig()
    assert [golden(again), golden(again), golden(rig())] == [expected] * 3


def test_it_is_another_for_another_rank_another_model_and_the_last_bit_of_a_gradient(monkeypatch):
    expected = golden(rig())
    assert golden(rig(rank=1)) != expected
    other = rig()
    with torch.no_grad():
        other.parts.params[0].mul_(1.5)
    assert golden(other) != expected
    true_loss = trainer.compute.token_loss
    monkeypatch.setattr(trainer.compute, "token_loss", lambda logits, labels: true_loss(logits, labels) * (1 + 2**-22))
    assert golden(rig()) != expected


def test_nothing_is_hashed_where_bits_are_not_compared():
    made = rig()
    assert golden(made, wanted=False) == ""
    assert made.parts.reducer.watch is None


@pytest.mark.parametrize(
    ("words", "kind", "expected"),
    [
        (["--fault_tolerance.reduction", "exact"], "cpu", True),
        (["--fault_tolerance.reduction", "fp32"], "cpu", False),
        (["--fault_tolerance.reduction", "exact"], "cuda", False),
        (["--fault_tolerance.reduction", "exact", "--debug.deterministic", "true"], "cuda", True),
    ],
)
def test_bits_are_compared_where_they_must_be_equal(words, kind, expected):
    assert compares_bits(parse_text("", words), torch.device(kind)) is expected


def test_versions_and_machine_are_named():
    assert software()["torch"] == torch.__version__
    assert set(software()) == {"python", "torch", "torchft", "numpy"}
    assert machine(torch.device("cpu"))["threads of a rank"] == str(torch.get_num_threads())
