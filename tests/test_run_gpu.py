"""The same run on an accelerator: NCCL inside the group, pinned staging, and the state that comes out of it."""

from __future__ import annotations

import pytest
import torch

from configs.words import Exit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator on this machine"),
]


def test_a_group_on_an_accelerator_is_killed_resumes_and_ends_as_undisturbed(rig):
    keys = {"groups": 1, "ranks": 1, "steps": 20, "debug__deterministic": True}
    alone = rig.run("gpu-alone", **keys)
    killed = rig.run("gpu-killed", chaos__failpoints=["g0:backward@9:kill"], **keys)
    assert (alone.code, killed.code) == (Exit.DONE, Exit.DONE), killed.said
    assert killed.series("digest") == alone.series("digest")


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two devices")
def test_groups_on_two_devices_sum_over_nccl_to_the_bit(rig):
    keys = {"ranks": 1, "steps": 20, "debug__deterministic": True}
    alone = rig.run("gpu-one", groups=1, **keys)
    killed = rig.run("gpu-two", groups=2, chaos__failpoints=["g1:reduce@9:kill"], **keys)
    assert (alone.code, killed.code) == (Exit.DONE, Exit.DONE), killed.said
    assert killed.series("digest") == alone.series("digest")
