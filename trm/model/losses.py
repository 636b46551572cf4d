"""Training losses and per-row metrics (TRM paper, section 4; stablemax: arXiv 2501.04697).

Shapes: B rows, S cells, V vocabulary.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def log_stablemax(logits: Tensor) -> Tensor:
    """log(s / sum s) over the last axis with s(x) = x + 1 for x >= 0, else 1 / (1 - x); in at least float32.

    Computed from log s(x): in the published form, the branch not taken has an infinite gradient at x = 1, which becomes
    NaN. Without `clamp`, whose gradient at 0 is 1 in torch 2.13 and 0 in torch 2.15.
    """
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    below = x < 0
    log_s = torch.where(
        below, -torch.log1p(torch.where(below, -x, 0.0)), torch.log1p(torch.where(below, 0.0, x))
    )
    return log_s - torch.logsumexp(log_s, dim=-1, keepdim=True)


class Answer(NamedTuple):
    """Loss and metrics of each row; all float32 [B]."""

    cross_entropy: Tensor
    """Mean over the valid cells."""
    accuracy: Tensor
    """Fraction of the valid cells that are right."""
    exact: Tensor
    """1 if every valid cell is right."""
    valid: Tensor
    """1 if the row has a valid cell."""


def judge(logits_SBV: Tensor, labels_BS: Tensor, ignore: int) -> Answer:
    """Score logits against labels; cells labelled `ignore` are not valid."""
    labels_SB = labels_BS.t().to(torch.int32)
    mask_SB = labels_SB != ignore
    symbols_V = torch.arange(logits_SBV.shape[-1], device=logits_SBV.device, dtype=torch.int32)
    logp_SBV = log_stablemax(logits_SBV)
    # compare instead of gather, which would need all-gathers on a sharded batch
    picked_SB = torch.where(labels_SB[..., None] == symbols_V, logp_SBV, 0.0).sum(-1)
    count_B = mask_SB.sum(0)
    divisor_B = count_B.clamp(min=1)
    right_SB = (logits_SBV.detach().argmax(-1) == labels_SB) & mask_SB
    right_B = right_SB.sum(0)
    return Answer(
        cross_entropy=-(torch.where(mask_SB, picked_SB, 0.0).sum(0) / divisor_B),
        accuracy=right_B / divisor_B,
        exact=(right_B == count_B).to(torch.float32),
        valid=(count_B > 0).to(torch.float32),
    )


def halting_loss(halt_B: Tensor, exact_B: Tensor) -> Tensor:
    """Half the binary cross entropy of the halt logit, with `exact_B` as the target, per row [B]."""
    return 0.5 * F.binary_cross_entropy_with_logits(halt_B, exact_B.to(halt_B.dtype), reduction="none")


def expected_further_steps(halt_B: Tensor, steps_B: Tensor, halt_max_steps: int) -> Tensor:
    """Expected number of remaining supervision steps [B], differentiable in the halt logit.

    Assumes that the current halt probability p = sigmoid(halt) holds at every later step. The number of steps is then
    geometric, truncated at R = halt_max_steps - steps, with mean sum_{k=1..R} (1 - p)^k. Similar to the ponder cost of
    adaptive computation time (arXiv 1603.08983, 2107.05407).
    """
    k = torch.arange(1, halt_max_steps, device=halt_B.device, dtype=halt_B.dtype)
    powers_BK = torch.exp(k * F.logsigmoid(-halt_B)[:, None])
    return torch.where(k <= (halt_max_steps - steps_B)[:, None], powers_BK, 0.0).sum(-1)
