"""The interface of an optimiser."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from trm.model.parameters import Layout, Rates
from trm.study.schema import TrainingConfig

Part = tuple[slice, tuple[int, ...]]
"""A part of the buffers, and the shape in which `Optimiser.direction` gets it."""


def chunks(start: int, stop: int, length: int) -> Iterator[Part]:
    """Flat parts of at most `length` elements."""
    for first in range(start, stop, length):
        last = min(first + length, stop)
        yield slice(first, last), (last - first,)


class Optimiser(ABC):
    """The direction and rates of an update; weight decay and EMA are common to all (`flat.update`)."""

    second_moment = True
    """Whether it keeps a second moment."""

    def rates(self, training: TrainingConfig, step: Tensor, lr: Tensor) -> Rates:
        """Rates of optimiser step `step` (from 1) at learning rate `lr`: Adam's, with bias correction."""
        one = torch.ones_like(step)
        correction = 1 - torch.pow(one * training.beta1, step)
        v_scale = torch.rsqrt(1 - torch.pow(one * training.beta2, step))
        return Rates(1 - lr * training.weight_decay, lr / correction, v_scale, correction, step)

    def uncorrected(self, training: TrainingConfig, step: Tensor, lr: Tensor) -> Rates:
        """Rates without bias correction, for methods whose step does not grow with the moments."""
        one = torch.ones_like(step)
        return Rates(1 - lr * training.weight_decay, lr * one, one, one, step)

    def parts(self, layout: Layout | None, shape: torch.Size, chunk: int) -> Iterator[Part]:
        """Parts of tensors of this shape, one for each call of `direction`: chunks of at most `chunk` elements, unless
        the optimiser needs to see matrices."""
        size = shape.numel()
        return chunks(0, size, chunk) if size > chunk else iter([(slice(None), tuple(shape))])

    @abstractmethod
    def direction(self, training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
        """Update the moments of one part in place and return the update direction as a new tensor of its shape.

        `rates.step` is the number of the step.
        """


class Adam(Optimiser):
    """Adam's moments (arXiv 1412.6980); the direction is a function of m and the bias-corrected sqrt(v)."""

    def direction(self, training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
        m.lerp_(g, 1 - training.beta1)
        v.mul_(training.beta2).addcmul_(g, g, value=1 - training.beta2)
        return self.ratio(m, v.sqrt().mul_(rates.v_scale))

    @abstractmethod
    def ratio(self, m: Tensor, deviation: Tensor) -> Tensor:
        """The direction; `deviation` may be overwritten."""
