"""Adam-atan2 (arXiv 2407.05872): atan2(m, sqrt(v)) instead of m / (sqrt(v) + eps)."""

import torch
from torch import Tensor

from trm.training.optim.base import Adam


class AdamAtan2(Adam):
    """Update direction atan2(m, deviation)."""

    def ratio(self, m: Tensor, deviation: Tensor) -> Tensor:
        return torch.atan2(m, deviation)


OPTIMISER = AdamAtan2()
