"""Groups whose states differ are found at the next attempt, told apart where they can be, and never published."""

from __future__ import annotations

import pytest
import torch

from checkpointing.checksum import checksum, total
from configs.protocol import Kind
from configs.words import SENTINEL_ROTATION, Exit, ExitRequest, Lineage
from tests.support.grants import grant, quorum_id
from tests.support.stand_ins import SHAPE
from tests.support.training import Rig, rig, world_of_one
from trainer.sentinel import Sentinel, judge

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64, torch.uint8)


@pytest.fixture(scope="module", autouse=True)
def _alone():
    with world_of_one():
        yield


def flipped(tensor: torch.Tensor, *, byte: int, bit: int) -> torch.Tensor:
    other = tensor.clone()
    other.view(-1).view(torch.uint8)[byte] ^= 1 << bit
    return other


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_flipped_bit_changes_the_checksum(dtype):
    tensor = torch.randint(0, 2, (3, 5)).to(dtype)
    usual = int(checksum(tensor))
    for byte in range(tensor.nbytes):
        for bit in (0,) if dtype is torch.bool else range(8):
            assert int(checksum(flipped(tensor, byte=byte, bit=bit))) != usual, (byte, bit)


def test_a_checksum_is_that_of_the_values_in_order_of_memory_or_not():
    tensor = torch.randn(6, 7)
    assert int(checksum(tensor)) == int(checksum(tensor.t().contiguous().t())) == int(checksum(tensor.flatten()))
    words = tensor.view(torch.int32).to(torch.int64).sum()
    assert int(checksum(tensor)) == int(words), "numpy's sum is torch's, which devices use"
    assert int(checksum(torch.empty(0))) == 0


def test_sums_wrap_as_collectives_do():
    near = torch.tensor([2**62, 2**62, 2**62], dtype=torch.int64)
    assert total(near.tolist()) == int(near.sum()) == -(2**62)


@pytest.mark.parametrize(
    ("sums", "odd", "disputed"),
    [
        ((1, 1), None, None),
        ((1, 2), ("g0", "g1"), True),
        ((1, 1, 2), ("g2",), False),
        ((2, 1, 1), ("g0",), False),
        ((1, 2, 3), ("g0", "g1", "g2"), True),
        ((1, 1, 2, 2), ("g0", "g1", "g2", "g3"), True),
        ((1, 1, 1, 2, 3), ("g3", "g4"), False),
    ],
    ids=str,
)
def test_the_majority_is_right_and_without_one_nobody_is(sums, odd, disputed):
    split = judge({f"g{i}": value for i, value in enumerate(sums)})
    assert (split and split.odd, split and split.disputed) == (odd, disputed)


def test_every_tensor_is_looked_at_within_eight_steps_and_all_of_them_when_asked():
    made = rig()
    sentinel = Sentinel(made.state.tensors, group="g0", seat=made.seat, digest=made.state.digest)
    seen: list[str] = []
    for step in range(SENTINEL_ROTATION):
        sentinel.look(grant("g0", "g1", current=Lineage(step, 1)), whole=False)
        seen += sentinel._sums
    assert sorted(seen) == sorted(made.state.tensors)
    sentinel.look(grant("g0", "g1", current=Lineage(3, 1)), whole=True)
    assert sorted(sentinel._sums) == sorted(made.state.tensors)


@pytest.mark.parametrize(
    "given", [grant("g0"), grant("g0", "g1", healing=("g1",)), grant("g0", "g1", "g2", healing=("g0",))], ids=str
)
def test_nothing_is_summed_where_there_is_nobody_to_compare_with(given):
    made = rig()
    made.parts.sentinel.look(given, whole=True)
    assert made.parts.sentinel.sum() == 0


def running(*groups: str) -> Rig:
    """A rank after its first step, whose next quorum seats ``groups``."""
    made = rig()
    made.attempt()
    made.seat.grants = [grant(*groups, attempt=2, current=made.state.clocks.lineage)]
    made.seat.alter = all_computed
    return made


def all_computed(summary: torch.Tensor) -> None:
    """The other groups have summed the rest of the step's microbatches."""
    summary[4] = SHAPE.microbatches


def others(*values: int | None):
    """Each other group's sum, None for this group's."""

    def hold(slots: torch.Tensor) -> None:
        for row, value in enumerate(values, start=1):
            slots[row] = slots[0] if value is None else value

    return hold


def test_the_odd_group_of_three_is_void_and_asks_to_heal():
    made = running("g0", "g1", "g2")
    made.seat.others_hold = others(7, 7)
    before = made.state.clocks
    made.attempt()
    (event,) = made.named("divergence")
    assert (event["groups"], event["step"]) == (["g0"], 1)
    assert event["tensors"], "which tensors differ"
    assert made.named("discard")[-1]["reason"] == "divergence"
    assert (made.state.void, made.state.disputed, made.state.clocks) == (True, False, before)
    assert made.seat.votes[-1] is False


def test_the_majority_goes_on_with_what_it_holds():
    made = running("g0", "g1", "g2")
    made.seat.others_hold = others(None, 7)
    made.attempt()
    assert made.named("divergence")[0]["groups"] == ["g2"]
    assert not made.state.void
    made.seat.others_hold = None
    made.attempt()
    assert made.named("commit")[-1]["step"] == 2


def test_of_two_that_differ_neither_is_used_again():
    made = running("g0", "g1")
    made.seat.others_hold = others(7)
    made.attempt()
    assert made.named("divergence")[0]["groups"] == ["g0", "g1"]
    made.seat.grants = [grant("g0", "g1", attempt=3, healing=("g0",), current=Lineage(0, quorum_id(1)))]
    made.seat.lose_at = "connect"
    made.attempt()
    asked = made.seat.standings[-1]
    assert (asked.void, asked.disputed, asked.lineage) == (True, True, made.state.clocks.lineage)


def test_different_weights_at_the_start_end_the_run_with_both_digests():
    made = rig()
    made.seat.alter = all_computed
    made.seat.grants = [grant("g0", "g1", restore=Lineage(0, 0))]
    made.seat.others_hold = others(7)
    with pytest.raises(ExitRequest) as caught:
        made.attempt()
    assert caught.value.code is Exit.CHECKPOINT
    assert f"g0 starts from {made.state.digest()}" in caught.value.reason
    assert "g1 starts from 0000000000000007" in caught.value.reason


def test_a_confirmed_state_is_published_once_its_holders_agree_and_with_their_sum():
    made = running("g0", "g1")
    lineage = made.state.clocks.lineage
    made.seat.lose_at = "sums"
    made.attempt()
    assert ("confirm", lineage) not in made.disk.told, "the attempt that would have compared it was discarded"
    made.seat.grants = [grant("g0", "g1", attempt=3, running=2, current=lineage)]
    made.attempt()
    assert ("confirm", lineage) in made.disk.told
    assert made.disk.checksums[-1] == total(int(checksum(t)) for t in rig_state(made, lineage))


def rig_state(made: Rig, lineage: Lineage):
    """The tensors of a run's first step, made again."""
    again = rig()
    again.attempt(lineage.step)
    assert again.state.clocks.step == lineage.step
    return again.state.tensors.values()


def test_who_holds_the_state_alone_publishes_it_at_once():
    made = running("g0", "g1")
    lineage = made.state.clocks.lineage
    made.seat.grants = [grant("g0", "g1", attempt=2, healing=("g1",), current=lineage)]
    made.seat.lose_at = "sums"
    made.attempt()
    assert ("confirm", lineage) in made.disk.told
    assert made.disk.checksums == [None]


def test_what_differs_is_never_published():
    made = running("g0", "g1")
    lineage = made.state.clocks.lineage
    made.seat.others_hold = others(7)
    made.attempt()
    assert ("confirm", lineage) not in made.disk.told
    assert ("orphan", lineage) in made.disk.told


def test_the_last_state_is_compared_before_it_is_published():
    made = rig(steps=1)
    made.attempt()
    made.seat.grants = [grant("g0", "g1", attempt=2, kind=Kind.CLOSING, current=made.state.clocks.lineage)]
    made.seat.others_hold = others(7)
    made.attempt()
    assert made.named("divergence")[0]["groups"] == ["g0", "g1"]
    assert not [told for told in made.disk.told if told[0] in ("save_last", "confirm")]
    assert made.ended == []
