"""AdamW (arXiv 1711.05101)."""

from torch import Tensor

from trm.training.optim.base import Adam


class AdamW(Adam):
    """Update direction m / (deviation + 1e-8)."""

    def ratio(self, m: Tensor, deviation: Tensor) -> Tensor:
        return m / deviation.add_(1e-8)


OPTIMISER = AdamW()
