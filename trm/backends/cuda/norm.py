"""Residual addition with RMSNorm (arXiv 1910.07467), and the gate of SwiGLU (arXiv 2002.05202), forward and backward.

Elementwise, so torch.compile makes one kernel of each that is as good as one written by hand. Over channels a row [D]
is normalised, over tokens a column of [L, M]: both are [rows, columns] here, and `axis` is the dimension of the mean.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.backends.cuda.compiled import compiled
from trm.model.definition import EPS


def scale_dtype(x: Tensor) -> torch.dtype:
    """The dtype of 1 / rms, in which all is computed."""
    return torch.promote_types(x.dtype, torch.float32)


@compiled
def residual_norm(
    x: Tensor,
    mixed: Tensor,
    axis: int,
    y: Tensor | None,
    scale: Tensor | None = None,
    extra: Tensor | None = None,
    into: Tensor | None = None,
) -> None:
    """y = rms_norm(x + mixed) along `axis` of [rows, columns]; `scale`: 1 / rms, in at least float32.

    With `extra`, also writes into = y + extra; `y` may then be None.
    """
    wide = scale_dtype(x)
    total = x.to(wide) + mixed.to(wide)
    inverse = torch.rsqrt(total.square().mean(axis) + EPS)
    out = (total * inverse.unsqueeze(axis)).to(x.dtype)
    if y is not None:
        y.copy_(out)
    if scale is not None:
        scale.copy_(inverse)
    if into is not None and extra is not None:
        into.copy_(out.to(wide) + extra.to(wide))


@compiled
def norm_backward(grad: Tensor, y: Tensor, scale: Tensor, axis: int, out: Tensor) -> Tensor:
    """Gradient of the norm's input from that of its output, the output and 1 / rms; `out` may be `grad`."""
    wide = scale_dtype(y)
    g, normed = grad.to(wide), y.to(wide)
    inner = (g * normed).mean(axis, keepdim=True)
    return out.copy_(scale.unsqueeze(axis) * (g - normed * inner))


def _halves(gate_up: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up: halves of each row over channels [N, 2 I], of the rows over tokens [2 I, M]."""
    gate, up = gate_up.chunk(2, -1 if len(gate_up) == len(hidden) else 0)
    return gate, up


@compiled
def gate(gate_up: Tensor, hidden: Tensor) -> Tensor:
    """hidden = silu(gate) * up."""
    wide = scale_dtype(hidden)
    first, second = _halves(gate_up, hidden)
    return hidden.copy_(F.silu(first.to(wide)) * second.to(wide))


@compiled
def gate_backward(gate_up: Tensor, hidden: Tensor) -> None:
    """In place: `hidden` holds its gradient and is recomputed; `gate_up` is replaced by its gradient."""
    wide = scale_dtype(hidden)
    first, second = _halves(gate_up, hidden)
    g, u, pushed = first.to(wide), second.to(wide), hidden.to(wide)
    sigma = torch.sigmoid(g)
    silu = g * sigma
    # all values first: the inputs may be the outputs' memory
    results = pushed * u * sigma * (1 + g - silu), pushed * silu, silu * u
    for out, result in zip((first, second, hidden), results):
        out.copy_(result)
