"""The loss head in one pass: log-form stablemax cross entropy (arXiv 2501.04697) and the row's metrics."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trm.network.cuda.common import power, wide
from trm.network.losses import Answer


@triton.jit
def _load(logits, labels, row, cells, rows, symbols, cell, symbol, WIDE: tl.constexpr):
    """Logits, s(x), each cell's label, and where there is a symbol."""
    inside = (cell[:, None] < cells) & (symbol[None, :] < symbols)
    place = (cell[:, None].to(tl.int64) * rows + row) * symbols + symbol[None, :]
    x = tl.load(logits + place, mask=inside, other=0.0).to(WIDE)
    s = tl.where(inside, tl.where(x < 0, 1.0 / (1.0 + tl.abs(x)), 1.0 + x), 0.0)
    label = tl.load(labels + row * cells + cell, mask=cell < cells, other=0).to(tl.int32)
    return x, s, label, inside, place


@triton.jit
def _forward(
    logits, labels, losses, accuracies, exacts, valids, cells, rows, symbols, ignore,
    CELLS: tl.constexpr, SYMBOLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cell, symbol = tl.arange(0, CELLS), tl.arange(0, SYMBOLS)
    x, s, label, inside, _ = _load(logits, labels, row, cells, rows, symbols, cell, symbol, WIDE)
    counts = (cell < cells) & (label != ignore)
    picked = tl.sum(tl.where(symbol[None, :] == label[:, None], s, 0.0), 1)
    total = tl.sum(s, 1)
    logp = tl.log(tl.where(counts, picked, 1.0)) - tl.log(tl.where(counts, total, 1.0))
    top = tl.max(tl.where(inside, x, float("-inf")), 1)
    answer = tl.min(tl.where(inside & (x == top[:, None]), symbol[None, :], SYMBOLS), 1)
    right = tl.sum((counts & (answer == label)).to(tl.int32), 0)
    count = tl.sum(counts.to(tl.int32), 0)
    divisor = tl.maximum(count, 1).to(WIDE)
    tl.store(losses + row, -tl.sum(tl.where(counts, logp, 0.0), 0) / divisor)
    tl.store(accuracies + row, right.to(WIDE) / divisor)
    tl.store(exacts + row, (right == count).to(WIDE))
    tl.store(valids + row, (count > 0).to(WIDE))


@triton.jit
def _backward(
    logits, labels, grads, out, cells, rows, symbols, ignore,
    CELLS: tl.constexpr, SYMBOLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cell, symbol = tl.arange(0, CELLS), tl.arange(0, SYMBOLS)
    x, s, label, inside, place = _load(logits, labels, row, cells, rows, symbols, cell, symbol, WIDE)
    counts = (cell < cells) & (label != ignore)
    divisor = tl.maximum(tl.sum(counts.to(tl.int32), 0), 1).to(WIDE)
    total = tl.maximum(tl.sum(s, 1), 1e-30)
    share = s / total[:, None]
    chosen = (symbol[None, :] == label[:, None]).to(WIDE)
    slope = (share - chosen) / (1.0 + tl.abs(x))
    weight = tl.load(grads + row).to(WIDE) / divisor
    tl.store(out + place, tl.where(counts[:, None], slope * weight, 0.0), mask=inside)


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignore: int) -> tuple[Tensor, ...]:
        cells, rows, symbols = logits.shape
        logits, labels = logits.contiguous(), labels.contiguous()
        dtype = torch.promote_types(logits.dtype, torch.float32)
        results = [torch.empty(rows, dtype=dtype, device=logits.device) for _ in range(4)]
        ctx.numbers = (cells, rows, symbols, ignore)
        ctx.options = {"CELLS": power(cells), "SYMBOLS": power(symbols), "WIDE": wide(logits)}
        _forward[(rows,)](logits, labels, *results, *ctx.numbers, **ctx.options)
        ctx.save_for_backward(logits, labels)
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels = ctx.saved_tensors
        out = torch.empty_like(logits)
        _backward[(logits.shape[1],)](logits, labels, grad.contiguous(), out, *ctx.numbers, **ctx.options)
        return out, None, None


def judge(logits_SBV: Tensor, labels_BS: Tensor, ignore: int) -> Answer:
    """As `trm.network.losses.judge`; differentiable in the cross entropy."""
    return Answer(*_Judge.apply(logits_SBV, labels_BS, ignore))
