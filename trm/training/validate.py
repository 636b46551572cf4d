"""Validation like the reference's: all supervision steps, no early stopping, the last answer is scored."""

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.model.inference import InferenceNetwork
from trm.model.scores import Score


@torch.no_grad()
def validate(
    net: InferenceNetwork,
    inputs: Tensor,
    labels: Tensor,
    puzzle_ids: Tensor,
    steps: int,
    ignore: int,
    score: Score,
) -> None:
    """Answer puzzles (inputs and labels uint8 [N, S], ids int32 [N]) with `steps` supervision steps and score them."""
    length = inputs.shape[1] + net.arch.puzzle_tokens
    batch = net.batch_rows(length)
    if missing := -len(inputs) % net.multiple:  # pad with rows whose cells are all ignored
        inputs, labels = F.pad(inputs, (0, 0, 0, missing)), F.pad(labels, (0, 0, 0, missing), value=ignore)
        puzzle_ids = F.pad(puzzle_ids, (0, missing))
    for first in range(0, len(inputs), batch):
        part = slice(first, first + batch)
        x = net.embed(inputs[part], puzzle_ids[part])
        z_H, z_L = net.start(x.shape[1], length)
        for _ in range(steps - 1):  # drop the logits, so that XLA does not compute them
            z_H, z_L = net.step(z_H, z_L, x)[:2]
        logits = net.step(z_H, z_L, x)[2]
        score.add(logits, inputs[part], labels[part], steps)
