"""How far is the model from the text?

The loss is a sum over tokens, never a mean: the step divides by its planned token count, a constant, so that neither
microbatches nor ranks with few valid tokens weigh more than their tokens do. Called once a microbatch.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor

IGNORED = -100
"""Label of a position that counts for nothing: padding, or a target beyond its document."""


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross entropy over labels other than ``IGNORED``: an fp32 scalar in nats, 0 when there are none.

    ``logits`` [batch, seq, vocab] of any float dtype (lifted to fp32 here), ``labels`` int64 [batch, seq].
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum")
