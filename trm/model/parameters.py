"""All trained parameters in one flat buffer: one optimiser pass, one all-reduce and one cast per step.

Each parameter starts at a multiple of 32 elements, so that its view is 64-byte aligned in bfloat16 too. The gaps hold
zeros, which every optimiser leaves at zero. On XLA, where a view costs a copy, each parameter has its own tensor.
"""

from collections.abc import Callable
from functools import reduce
from math import erf, exp, pi, prod, sqrt
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from trm.model.definition import Architecture
from trm.study.flops import parameter_shapes
from trm.study.schema import ModelConfig

ALIGNMENT = 32
HALT_BIAS = -5.0
Buffer = Any
"""A flat Tensor [size], or list[Tensor]: each parameter in its shape, in the order of the layout."""


def tensors(buffer: Buffer) -> list[Tensor]:
    """The tensors that hold a buffer."""
    return [buffer] if isinstance(buffer, Tensor) else list(buffer)


def mapped(function: Callable[[Tensor], Tensor], buffer: Buffer) -> Buffer:
    """A buffer of what `function` returns for each tensor."""
    return function(buffer) if isinstance(buffer, Tensor) else [function(part) for part in buffer]


def squared_norm(parts: list[Tensor]) -> Tensor:
    """The sum of the squares of all elements."""
    squares = [torch.dot(part, part) if part.dim() == 1 else part.square().sum() for part in parts]
    return reduce(torch.add, squares)


class Moments(NamedTuple):
    """Optimiser state of the parameters; `v` is an empty tensor for optimisers without a second moment."""

    m: Buffer
    v: Buffer


class Rates(NamedTuple):
    """Scalars of one optimiser step, 0-d float32 tensors on the device."""

    keep: Tensor
    """1 - lr * weight_decay."""
    step_size: Tensor
    """Factor of the update direction: lr / (1 - beta1^t); for Lion lr."""
    v_scale: Tensor
    """1 / sqrt(1 - beta2^t)."""
    correction: Tensor
    """1 - beta1^t, by which Adam's `step_size` is divided; a direction without that bias multiplies by it."""
    step: Tensor
    """The optimiser step t, from 1."""


class Layout:
    """Where each parameter is in the flat buffer: `shapes` and `offsets` by name, `size` elements in total."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]):
        self.shapes = shapes
        self.offsets: dict[str, int] = {}
        self.size = 0
        for name, shape in shapes.items():
            self.offsets[name] = self.size
            self.size += -(-prod(shape) // ALIGNMENT) * ALIGNMENT

    @classmethod
    def of(cls, model: ModelConfig, seq_len: int, vocab: int) -> Self:
        """The layout of a model on sequences of `seq_len` cells over `vocab` symbols."""
        return cls(parameter_shapes(model, seq_len, vocab))

    def views(self, buffer: Buffer) -> dict[str, Tensor]:
        """Each parameter as a view into a flat buffer, or as its own tensor."""
        if not isinstance(buffer, Tensor):
            return dict(zip(self.shapes, buffer, strict=True))
        return {
            name: buffer[self.offsets[name] : self.offsets[name] + prod(shape)].view(shape)
            for name, shape in self.shapes.items()
        }

    def flat(self, buffer: Buffer) -> Tensor:
        """The buffer as one tensor [size]."""
        if isinstance(buffer, Tensor):
            return buffer
        packed: Tensor = buffer[0].new_zeros(self.size)
        for view, part in zip(self.views(packed).values(), buffer, strict=True):
            view.copy_(part)
        return packed


def architecture(model: ModelConfig, dtype: torch.dtype) -> Architecture:
    """The `Architecture` of a model."""
    rope = model.mixer == "attention" and model.position == "rope"
    return Architecture(model.layers, model.heads, model.puzzle_tokens, rope, dtype)


def uniform(seed: int, name: str, shape: tuple[int, ...], steps: range = range(1)) -> np.ndarray:
    """Uniform numbers in [0, 1) for consecutive steps, each a function of (seed, name, step): float64 [steps, *shape].

    Computed from Philox's raw words, which NumPy keeps stable between versions (unlike its distributions).
    """
    key = np.array([seed, crc32(name.encode())], dtype=np.uint64)
    philox = np.random.Philox(key=key, counter=np.array([0, 0, 0, steps.start], dtype=np.uint64))
    words = np.empty((len(steps), prod(shape)), dtype=np.uint64)
    for row in words:
        row[:] = philox.random_raw(len(row))
        philox.advance(
            (1 << 192) - -(-len(row) // 4)
        )  # four words a count; the step is the counter's upper part
    return ((words >> np.uint64(11)) * 2.0**-53).reshape(len(steps), *shape)


def truncated_normal(shape: tuple[int, ...], std: float, seed: int, name: str) -> Tensor:
    """Normal truncated at two sigma and rescaled so that `std` is the deviation after truncation; float32."""
    mass = erf(sqrt(2))  # of a standard normal within two sigma
    density = exp(-2.0) / sqrt(2 * pi)
    true_std = sqrt(1 - 4 * density / mass)
    spread = torch.from_numpy((2 * uniform(seed, name, shape)[0] - 1) * mass)
    return (torch.erfinv(spread) * (sqrt(2) * std / true_std)).float()


def initial_weights(model: ModelConfig, seq_len: int, vocab: int, seed: int) -> dict[str, Tensor]:
    """Initial float32 parameters: truncated normal with std 1/sqrt(fan_in); halt head: weight 0, bias -5."""
    weights = {}
    for name, shape in parameter_shapes(model, seq_len, vocab).items():
        if name == "halt.weight":
            weights[name] = torch.zeros(shape)
        elif name == "halt.bias":
            weights[name] = torch.full(shape, HALT_BIAS)
        else:
            weights[name] = truncated_normal(shape, shape[-1] ** -0.5, seed, name)
    return weights


def initial_states(model: ModelConfig, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The start vectors `h_init` and `l_init` [D] in the forward dtype; they are not trained."""
    shape = (model.d_model,)
    return {name: truncated_normal(shape, 1.0, seed, name).to(dtype) for name in ("h_init", "l_init")}
