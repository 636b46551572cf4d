"""Residual addition with RMSNorm (arXiv 1910.07467), and backward of it and of SwiGLU's gate (arXiv 2002.05202).

Elementwise, so torch.compile makes one kernel of each that is as good as one written by hand. Rows [N, D] are
normalised over their channels.
"""

from __future__ import annotations

import torch
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
    y: Tensor | None,
    scale: Tensor | None = None,
    extra: Tensor | None = None,
    into: Tensor | None = None,
) -> None:
    """y = rms_norm(x + mixed); `scale` [N]: 1 / rms, in at least float32.

    With `extra`, also writes into = y + extra; `y` may then be None.
    """
    wide = scale_dtype(x)
    total = x.to(wide) + mixed.to(wide)
    inverse = torch.rsqrt(total.square().mean(1) + EPS)
    out = (total * inverse[:, None]).to(x.dtype)
    if y is not None:
        y.copy_(out)
    if scale is not None:
        scale.copy_(inverse)
    if into is not None and extra is not None:
        into.copy_(out.to(wide) + extra.to(wide))


@compiled
def norm_backward(grad: Tensor, y: Tensor, scale: Tensor, out: Tensor) -> Tensor:
    """Gradient of the norm's input from that of its output, the output and 1 / rms; `out` may be `grad`."""
    wide = scale_dtype(y)
    g, normed = grad.to(wide), y.to(wide)
    inner = (g * normed).mean(1, keepdim=True)
    return out.copy_(scale[:, None] * (g - normed * inner))


@compiled
def gate_backward(gate_up: Tensor, hidden: Tensor) -> None:
    """Backward of hidden = silu(gate) * up in place, gate and up being the halves of each row of `gate_up` [N, 2 I].

    `hidden` holds its gradient and is recomputed; `gate_up` is replaced by its gradient.
    """
    wide = scale_dtype(hidden)
    first, second = gate_up.chunk(2, 1)
    g, u, pushed = first.to(wide), second.to(wide), hidden.to(wide)
    sigma = torch.sigmoid(g)
    silu = g * sigma
    # all values first: the inputs may be the outputs' memory
    results = pushed * u * sigma * (1 + g - silu), pushed * silu, silu * u
    for out, result in zip((first, second, hidden), results):
        out.copy_(result)
