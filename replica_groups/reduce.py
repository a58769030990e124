"""How do the gradients of all microbatches, of all groups, become one sum?

Each parameter's sharded gradient is taken in a hook right after FSDP's own reduction, microbatch by microbatch, and
added to the flat buffer of its bucket. Buckets have an order and sizes fixed before the run (the reverse of the
parameters' order, which is about the order of backward). In the last microbatch bucket i is posted as soon as it is
complete and bucket i-1 has been posted, so summing across groups overlaps backward; a rank without a backward posts
zeros.

``exact``: a gradient becomes int64 fixed point (2^bits), so that the sum does not depend on its order and a commit's
weights do not depend on who computed what. ``fp32``: plain sums. Every microbatch is checked: non-finite, or too large
for the fixed point, sets the flag and adds zeros. Nothing is checked on sums.

Memory is touched as little as that allows, for on a CPU each pass over the gradients costs about a percent of a step.
The first microbatch is copied where the others are added; ``deliver`` hands out the buffers themselves where it can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from replica_groups.channel import Channel

_HEADROOM_BITS = 62


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """How gradients are summed."""

    exact: bool
    bits: int
    """Exact: a gradient g is counted as round(g * 2^bits)."""
    limit: float
    """Largest |g| of one microbatch that is not flagged."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.exact else torch.float32


def precision(*, reduction: str, bits: int, microbatches: int, ranks: int) -> Precision:
    """The precision of a run. Exact sums of M microbatches of all ranks must not wrap: |g| 2^bits <= 2^62 / (M ranks).

    int64 wraps without a word (3e5 + 3e5 at 2^44 reads back as -448,576), hence the limit.
    """
    if reduction == "exact":
        return Precision(exact=True, bits=bits, limit=2.0 ** (_HEADROOM_BITS - bits) / (microbatches * ranks))
    return Precision(exact=False, bits=bits, limit=torch.finfo(torch.float32).max)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor (no copy), or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Bucket:
    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.sizes = [local(p).numel() for p in params]
        self.buffer: torch.Tensor | None = None
        self.waiting = 0

    def allocate(self, dtype: torch.dtype) -> None:
        self.buffer = torch.empty(sum(self.sizes), dtype=dtype, device=local(self.params[0]).device)

    def views(self) -> Iterable[tuple[nn.Parameter, torch.Tensor]]:
        assert self.buffer is not None
        for p, flat in zip(self.params, self.buffer.split(self.sizes), strict=True):
            yield p, flat.view(local(p).shape)


class GradientReducer:
    """Collects and sums the gradients of one model. One attempt: ``begin``, for each microbatch of the share
    ``expect`` and backward, ``post_rest``; once the sums are there ``deliver`` puts them into ``.grad``."""

    def __init__(self, model: nn.Module, *, how: Precision, bucket_bytes: int, failpoint: Callable[..., None]) -> None:
        self.how = how
        trainable = [p for p in model.parameters() if p.requires_grad]  # tied parameters appear once
        self._buckets = [_Bucket(group) for group in _split(trainable[::-1], how.dtype.itemsize, bucket_bytes)]
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.params}
        self._views: dict[nn.Parameter, torch.Tensor] = {}
        self._untouched: set[nn.Parameter] = set()
        self._channel: Channel | None = None
        self._collecting = False
        self._last = False
        self._posted = 0
        device = local(trainable[0]).device
        self._flag = torch.zeros((), dtype=torch.bool, device=device)
        self._failpoint = failpoint
        self._poisoned = False
        self._in_backward = False
        self.watch: Callable[[nn.Parameter, torch.Tensor], None] | None = None
        """Shown every gradient shard of a backward outside an attempt, inside that backward."""
        for p in trainable:
            p.register_post_accumulate_grad_hook(self._take)

    def poison_next(self) -> None:
        """Injected fault: the next gradient becomes NaN."""
        self._poisoned = True

    @property
    def params(self) -> tuple[nn.Parameter, ...]:
        """Those whose gradients are summed, in a fixed order."""
        return tuple(self._bucket_of)

    @property
    def bucket_sizes(self) -> list[int]:
        """Bytes of each bucket, in posting order."""
        return [sum(b.sizes) * self.how.dtype.itemsize for b in self._buckets]

    def begin(self, channel: Channel) -> None:
        """Start an attempt. Buffers are kept between attempts unless they were abandoned; what an earlier one left in
        them is written over."""
        for bucket in self._buckets:
            if bucket.buffer is None:
                bucket.allocate(self.how.dtype)
            bucket.waiting = len(bucket.params)
        self._views = {p: view for bucket in self._buckets for p, view in bucket.views()}
        self._untouched = set(self._views)
        self._channel, self._posted, self._last, self._collecting = channel, 0, False, True
        self._flag.zero_()

    def expect(self, *, last: bool) -> None:
        """The next backward is the last of this attempt's share, or not."""
        self._last = last
        self._in_backward = False

    def post_rest(self) -> None:
        """Post what no backward has posted: everything for an empty share, and unused parameters otherwise."""
        while self._posted < len(self._buckets):
            self._post()
        self._collecting = False

    def flagged(self) -> bool:
        """Whether a microbatch of this rank was non-finite or too large. Device sync."""
        return bool(self._flag)

    def deliver(self, *, scale: float) -> None:
        """Put sum * ``scale`` into every parameter's ``.grad``, as a tensor of the parameter's own kind. Once; it may
        be a view of the buffers, and is gone with the next ``begin``."""
        for p, view in self._views.items():
            p.grad = _like(p, self._scaled(view, scale).to(p.dtype))

    def _scaled(self, view: torch.Tensor, scale: float) -> torch.Tensor:
        if not self.how.exact:
            return view if scale == 1.0 else view.mul_(scale)
        factor = 2.0**-self.how.bits
        # int64 to fp32 rounds once, and the power of two not at all; any other factor wants float64 between them.
        return view * factor if scale == 1.0 else view.double() * (scale * factor)

    def drop(self, *, abandoned: bool) -> None:
        """End an attempt without a commit: no gradient is left behind. Abandoned buffers may still be written to by a
        peer that wakes, so they are never used again."""
        self._collecting, self._channel, self._views = False, None, {}
        for bucket in self._buckets:
            if abandoned:
                bucket.buffer = None
            for p in bucket.params:
                p.grad = None

    def _take(self, param: nn.Parameter) -> None:
        """Runs inside backward, after FSDP has set the sharded gradient."""
        if not self._collecting or param.grad is None:
            if self.watch is not None and param.grad is not None:
                self.watch(param, local(param.grad))
            param.grad = None
            return
        grad = local(param.grad)
        param.grad = None
        if not self._in_backward:
            self._in_backward = True
            self._failpoint("backward")
        if self._poisoned and grad.numel():
            grad = torch.full_like(grad, float("nan"))
            self._poisoned = False
        if grad.numel():
            self._add(self._views[param], grad, first=param in self._untouched)
            self._untouched.discard(param)
        if self._last:
            self._bucket_of[param].waiting -= 1
            while self._posted < len(self._buckets) and self._buckets[self._posted].waiting == 0:
                self._post()

    def _add(self, view: torch.Tensor, grad: torch.Tensor, *, first: bool) -> None:
        grad = self._checked(grad)
        if self.how.exact:
            grad = (grad.float() * 2.0**self.how.bits).round_()
            grad = grad if first else grad.to(torch.int64)  # a copy converts, an addition does not
        if first:
            view.copy_(grad)
        else:
            view.add_(grad)

    def _checked(self, grad: torch.Tensor) -> torch.Tensor:
        """``grad``, or zeros and the flag where something in it is beyond the limit. NaN is neither above nor below."""
        least, most = torch.aminmax(grad)
        good = (least >= -self.how.limit) & (most <= self.how.limit)
        self._flag |= ~good
        if grad.device.type != "cpu":
            return torch.where(good, grad, 0.0)  # to look would wait for the device
        return grad if good else torch.zeros_like(grad)

    def _post(self) -> None:
        buffer = self._buckets[self._posted].buffer
        assert buffer is not None
        assert self._channel is not None
        for p in self._untouched.intersection(self._buckets[self._posted].params):
            self._views[p].zero_()
        self._failpoint("reduce_before", self._posted)
        if buffer.numel():  # the last ranks of a group may hold no shard of small tensors
            self._channel.post(buffer)
        self._failpoint("reduce", self._posted)
        self._posted += 1


def _split(params: list[nn.Parameter], itemsize: int, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Cut the list into runs of at least ``bucket_bytes``. Local sizes may differ by rank, so whole sizes decide."""
    buckets: list[list[nn.Parameter]] = [[]]
    size = 0
    for p in params:
        if buckets[-1] and size + p.numel() * itemsize > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(p)
        size += p.numel() * itemsize
    return buckets


def _like(param: nn.Parameter, shard: torch.Tensor) -> torch.Tensor:
    if not isinstance(param, DTensor):
        return shard
    return DTensor.from_local(
        shard, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )
