"""What does a group look like inside, and how is a model laid over it?

The mesh of one group is the same in every group. FSDP2 shards every block and then the root over its data axis;
gradients are *summed* over the ranks, never averaged, because the loss is divided by the planned token count before
backward: dividing again by a number of ranks would make the batch depend on the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

DATA_AXIS = "dp_shard"


def device_of(index: int) -> torch.device:
    """Device ``index`` of this machine where there is an accelerator, else the CPU. Raises ValueError if there are
    fewer."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    count = torch.accelerator.device_count()
    if index >= count:
        raise ValueError(f"this rank is to use device {index}, but there are {count}: see launch.devices")
    torch.accelerator.set_device_index(index)
    return torch.device(kind.type, index)


def backend_for(device: torch.device) -> str:
    """Backends of the group's own process group: CPU tensors always go through gloo."""
    return "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


def build_mesh(*, device: torch.device, data_parallel: int) -> DeviceMesh:
    """The mesh of one group."""
    return init_device_mesh(device.type, (data_parallel,), mesh_dim_names=(DATA_AXIS,))


def shard(
    model: nn.Module,
    *,
    blocks: Sequence[nn.Module],
    mesh: DeviceMesh,
    param_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    reshard_after_forward: bool,
) -> None:
    """Apply FSDP2 to every block and the root, with true sums.

    The divide factor alone on the root has no effect, and without forced sums gloo refuses the factor; both must be set
    on every module.
    """
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
