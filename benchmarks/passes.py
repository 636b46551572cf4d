"""What the compiled passes of `trm.network.cpu` must at least move through memory: floors for measured times.

Each pass reads its inputs and writes its outputs once; matrix products are counted by their operations alone, and so
are layers that are one product from end to end (`trm.network.cpu.blocked`).
"""

from __future__ import annotations

import time

import torch

from trm.study.flops import inner_width, tokens
from trm.study.schema import ModelConfig


def block_elements(model: ModelConfig, cells: int, rows: int, whole: bool) -> tuple[int, int, int]:
    """Elements that one block application moves forward, and backward, and elements of its weights.

    `whole`: layers are products from end to end.
    """
    length, width = tokens(model, cells), model.d_model
    inner, token_inner = inner_width(model, width), inner_width(model, length)
    states = length * rows * width
    hidden, token_hidden = inner * length * rows, token_inner * rows * width
    mixing = model.mixer == "mlp"
    weights = 3 * width * inner + (3 * length * token_inner if mixing else 4 * width * width)
    # backward of a norm: three in, one out; rows to panels, twice: one in, one out
    forward, backward = 0, 2 * 4 * states + (2 * 2 * states if whole else 0)
    if not whole:
        # gate: two in, one out; norm: two in, one out; backward of a gate: three in and out
        gates = hidden + token_hidden * mixing
        forward, backward = forward + 3 * gates + 2 * 3 * states, backward + 6 * gates
    if not mixing:
        scores = rows * model.heads * length * length
        # heads split (3 in, 3 out) and joined (1, 1), softmax in place; backward the gradients' and the outputs' again
        forward, backward = forward + 8 * states + 2 * scores, backward + 10 * states + 3 * scores
        if whole:
            forward, backward = forward + 3 * states, backward + 2 * (1 + 3 + 1 + 1) * states
    return forward, backward, weights


def step_bytes(model: ModelConfig, cells: int, rows: int, itemsize: int, train: bool, whole: bool) -> int:
    """Bytes of the passes of one supervision step, and of training's gradient sums and optimiser."""
    forward, backward, weights = block_elements(model, cells, rows, whole)
    uses = model.layers * (model.l_cycles + 1)
    total = itemsize * forward * uses * model.h_cycles
    if train:
        # a use's gradient: read, and added to a float32 sum (float32 products, and our own, add by themselves)
        sums = (itemsize + 8) * weights if itemsize < 4 and not whole else 0
        # weight, gradient, two moments, average in; all but the gradient out; the cast weight
        optimiser = model.layers * weights * (5 * 4 + 4 * 4 + (4 + itemsize if itemsize < 4 else 0))
        total += uses * (itemsize * backward + sums) + optimiser
    return total


def copy_rate() -> float:
    """Bytes a second that a copy of 64 MB reads and writes on torch's threads, at best."""
    source = torch.zeros(1 << 24)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(7):
        begun = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - begun)
    return 2 * source.numel() * 4 / best
