"""The reference evaluation: every supervision step, no early exit, the last answer counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.network.inference import InferenceNetwork, inference_batch
from trm.network.losses import judge


class Score(NamedTuple):
    """Sums over puzzles."""

    puzzles: float
    exact: float
    accuracy: float
    blank: float
    """Accuracy on the cells that are blank in the question."""
    cross_entropy: float


@torch.no_grad()
def validate(
    net: InferenceNetwork,
    inputs: Tensor,
    labels: Tensor,
    puzzle_ids: Tensor,
    steps: int,
    ignore: int,
    blank: int | None = None,
) -> Score:
    """Score puzzles (uint8 [N, S], labels too; ids int32 [N]) after `steps` supervision steps.

    `blank`: the symbol of an unknown cell in a question; None: every cell is one.
    """
    length = inputs.shape[1] + net.arch.puzzle_tokens
    batch = inference_batch(length, len(net.h_init), inputs.device) * max(1, net.multiple // 2)
    if missing := -len(inputs) % net.multiple:  # rows whose cells all count for nothing
        inputs, labels = F.pad(inputs, (0, 0, 0, missing)), F.pad(labels, (0, 0, 0, missing), value=ignore)
        puzzle_ids = F.pad(puzzle_ids, (0, missing))
    sums = torch.zeros(len(Score._fields), device=inputs.device)
    for first in range(0, len(inputs), batch):
        part = slice(first, first + batch)
        x = net.embed(inputs[part], puzzle_ids[part])
        z_H, z_L = net.start(x.shape[1], length)
        for _ in range(steps):
            z_H, z_L, logits, _ = net.step(z_H, z_L, x)
        answer = judge(logits, labels[part], ignore)
        unknown_BS = labels[part] != ignore
        if blank is not None:
            unknown_BS &= inputs[part] == blank
        right_BS = (logits.argmax(-1).t() == labels[part]) & unknown_BS
        blank_B = right_BS.sum(1) / unknown_BS.sum(1).clamp(min=1)
        measured = (answer.exact, answer.accuracy, blank_B, answer.cross_entropy)
        sums += torch.stack([answer.valid.sum(), *((value * answer.valid).sum() for value in measured)])
    return Score(*sums.cpu().tolist())
