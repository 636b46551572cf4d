"""The network through torch.compile, for long runs that the CPU kernel does not cover."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from trm.backends.cpu.build import compiler
from trm.model import definition
from trm.model.plain import PlainNetwork

log = logging.getLogger("trm")
LEAST_FLOPS = 4e12
"""FLOPs of a run from which compiling pays: it takes 35 s the first time (5 s with Inductor's cache on disk) and saves
a quarter of PyTorch's time for attention (docs/performance.md), at 20 to 40 GFLOP/s."""


class CompiledNetwork(PlainNetwork):
    """`PlainNetwork`, compiled at the first call for each number of cycles; uncompiled if that fails."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        from torch._dynamo.exc import TorchDynamoException  # takes a second, and not every run compiles

        self._failure = TorchDynamoException
        self._step = torch.compile(definition.supervision_step, dynamic=False)

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        arguments = (z_H, z_L, inputs, puzzle, self.weights, self._arch, h_cycles, l_cycles)
        try:
            outputs: tuple[Tensor, Tensor, Tensor, Tensor] = self._step(*arguments)
        except self._failure as error:
            log.warning("torch.compile failed, so PyTorch trains without it, slower: %s", _reason(error))
            self._step = definition.supervision_step
            outputs = self._step(*arguments)
        return outputs


def _reason(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:2]) or type(error).__name__


def pays(train_flops: float) -> bool:
    """Whether compiling shortens a run of this many FLOPs; Inductor needs a C++ compiler."""
    return train_flops >= LEAST_FLOPS and compiler() is not None
