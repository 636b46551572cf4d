"""Lion (arXiv 2302.06675)."""

import torch
from torch import Tensor

from trm.model.parameters import Rates
from trm.study.schema import TrainingConfig
from trm.training.optim.base import Optimiser


class Lion(Optimiser):
    """Update direction sign(beta1 * m + (1 - beta1) * g)."""

    second_moment = False

    rates = Optimiser.uncorrected

    def direction(self, training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
        direction = torch.lerp(g, m, training.beta1).sign_()
        m.lerp_(g, 1 - training.beta2)
        return direction


OPTIMISER = Lion()
