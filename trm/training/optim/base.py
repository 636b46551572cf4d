"""The interface of an optimiser."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from trm.model.parameters import Rates
from trm.study.schema import TrainingConfig


class Optimiser(ABC):
    """The direction and rates of an update; weight decay and EMA are common to all (`flat.update`)."""

    second_moment = True
    """Whether it keeps a second moment."""

    def rates(self, training: TrainingConfig, step: Tensor, lr: Tensor) -> Rates:
        """Rates of optimiser step `step` (from 1) at learning rate `lr`: Adam's, with bias correction."""
        one = torch.ones_like(step)
        correction = 1 - torch.pow(one * training.beta1, step)
        v_scale = torch.rsqrt(1 - torch.pow(one * training.beta2, step))
        return Rates(1 - lr * training.weight_decay, lr / correction, v_scale)

    @abstractmethod
    def direction(self, training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
        """Update the moments in place and return the update direction as a new tensor."""


class Adam(Optimiser):
    """Adam's moments (arXiv 1412.6980); the direction is a function of m and the bias-corrected sqrt(v)."""

    def direction(self, training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
        m.lerp_(g, 1 - training.beta1)
        v.mul_(training.beta2).addcmul_(g, g, value=1 - training.beta2)
        return self.ratio(m, v.sqrt().mul_(rates.v_scale))

    @abstractmethod
    def ratio(self, m: Tensor, deviation: Tensor) -> Tensor:
        """The direction; `deviation` may be overwritten."""
