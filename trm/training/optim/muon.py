"""Muon (arXiv 2502.16982): the momentum of each matrix of the blocks, made orthogonal by Newton-Schulz iterations.

Embeddings, heads and vectors take Adam-atan2's step. Of fused matrices (gate and up; q, k and v) each is its own.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from trm.model.parameters import Layout, Rates
from trm.study.schema import TrainingConfig
from trm.training.optim.adam_atan2 import AdamAtan2
from trm.training.optim.base import Part, chunks

FUSED = {"gate_up": 2, "qkv": 3}
"""Matrices in one parameter, by the end of its name."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
RMS = 0.2  # of a step, about that of Adam's, so that learning rates carry over


class Muon(AdamAtan2):
    """Parts of the blocks are matrices [fused, out, in], the others vectors. No second moment of a matrix is used."""

    def parts(self, layout: Layout | None, shape: torch.Size, chunk: int) -> Iterator[Part]:
        if layout is None:
            raise ValueError("Muon needs the layout of the parameters")
        for name, (rows, *columns) in layout.shapes.items():
            start, length = layout.offsets[name], rows * prod(columns)
            if name.startswith("blocks.") and columns:
                fused = FUSED.get(name.rpartition(".")[2], 1)
                yield slice(start, start + length), (fused, rows // fused, *columns)
            else:
                yield from chunks(start, start + length, chunk)

    def direction(self, training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
        if g.ndim == 1:
            return super().direction(training, g, m, v, rates)
        m.lerp_(g, 1 - training.beta1)
        rms = RMS * max(g.shape[1:]) ** 0.5
        return orthogonal(torch.lerp(g, m, training.beta1)).mul_(rms * rates.correction)


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [..., out, in] with their singular values brought near 1 (0.7 to 1.2)."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


OPTIMISER = Muon()
