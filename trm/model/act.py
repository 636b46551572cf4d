"""Adaptive computation time: each batch slot keeps its puzzle until the model halts on it (TRM paper, section 4.3)."""

from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor


class Rows(NamedTuple):
    """A batch of puzzles, or a whole data set: cells and answers uint8 [B, S], puzzle-table rows int32 [B]."""

    inputs: Tensor
    labels: Tensor
    puzzle: Tensor


class Carry(NamedTuple):
    """The state that slots carry from one supervision step to the next."""

    z_H: Tensor
    """Answer state [L, B, D] in the forward dtype."""
    z_L: Tensor
    """Latent state [L, B, D]."""
    steps: Tensor
    """Supervision steps taken on the current row, int32 [B]."""
    halted: Tensor
    """Whether the row is finished and the slot takes a new one, bool [B]."""
    rows: Rows


def with_noise(z: Tensor, deviation: float, *key: int) -> Tensor:
    """`z` plus normal noise of this standard deviation, which is a function of `key`, the shape and the device."""
    if not deviation:
        return z
    device = torch.device("cpu") if z.device.type == "xla" else z.device  # XLA has no generators
    generator = torch.Generator(device=device)
    # 32 bits, since torch's CPU generator ignores the higher bits of a seed
    generator.manual_seed(crc32(" ".join(map(str, key)).encode()))
    drawn = torch.randn(z.shape, generator=generator, device=device, dtype=torch.float32) * deviation
    return z + drawn.to(z.device, z.dtype)


def empty_carry(length: int, width: int, seq_len: int, batch: int, dtype: torch.dtype) -> Carry:
    """A host carry with all slots halted, so that the first step fills them from the batch."""
    return Carry(
        z_H=torch.zeros(length, batch, width, dtype=dtype),
        z_L=torch.zeros(length, batch, width, dtype=dtype),
        steps=torch.zeros(batch, dtype=torch.int32),
        halted=torch.ones(batch, dtype=torch.bool),
        rows=Rows(
            torch.zeros(batch, seq_len, dtype=torch.uint8),
            torch.zeros(batch, seq_len, dtype=torch.uint8),
            torch.zeros(batch, dtype=torch.int32),
        ),
    )


def refill(carry: Carry, incoming: Rows, h_init: Tensor, l_init: Tensor) -> Carry:
    """Reset halted slots to the start states and their row of `incoming`; other slots discard their incoming row."""
    reset = carry.halted
    reset_state, reset_row = reset[None, :, None], reset[:, None]
    return Carry(
        z_H=torch.where(reset_state, h_init, carry.z_H),
        z_L=torch.where(reset_state, l_init, carry.z_L),
        steps=torch.where(reset, 0, carry.steps),
        halted=carry.halted,
        rows=Rows(
            torch.where(reset_row, incoming.inputs, carry.rows.inputs),
            torch.where(reset_row, incoming.labels, carry.rows.labels),
            torch.where(reset, incoming.puzzle, carry.rows.puzzle),
        ),
    )


def halt(steps_B: Tensor, halt_logit_B: Tensor, minimum_B: Tensor, halt_max_steps: int) -> Tensor:
    """Whether each row halts after `steps_B` steps, bool [B].

    A row halts at `halt_max_steps`, or once its halt logit is positive and it has taken `minimum_B` steps (the
    exploration minimum; 0: none).
    """
    return (steps_B >= halt_max_steps) | ((halt_logit_B > 0) & (steps_B >= minimum_B))
