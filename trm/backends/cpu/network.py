"""The network by the CPU kernel: inference, and a training step's gradients in one call."""

from typing import NamedTuple

import torch
from torch import Tensor

from trm.backends.cpu import library
from trm.backends.cpu.library import Inference, Job, Kernel, address, addresses
from trm.model.act import Carry, Rows
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout
from trm.model.plain import PlainRounds
from trm.study.stages import Recursion

MAX_GROUP_FLOATS = 1 << 22
"""Weights of a network times groups of rows, at most: each group sums gradients of its own."""


def _kernel(weights: Weights, arch: Architecture, products: int, length: int, rows: int) -> Kernel:
    """For `rows` rows of `length` tokens."""
    vocab, width = weights["embed.weight"].shape
    down = weights.get("blocks.0.token_mlp.down")
    channel_inner = weights["blocks.0.channel_mlp.down"].shape[1]
    size = sum(weight.numel() for weight in weights.values())
    groups = max(1, min(library.GROUPS, rows // 4, MAX_GROUP_FLOATS // size))
    token_inner, heads = (0, arch.heads) if down is None else (down.shape[1], 0)
    sizes = (arch.layers, length - arch.puzzle_tokens, arch.puzzle_tokens, width, token_inner, channel_inner)
    return Kernel((*sizes, vocab, groups, heads, arch.rope), products)


class KernelRounds(PlainRounds):
    """Supervision steps for inference."""

    def __init__(self, weights: Weights, arch: Architecture, products: int):
        wide = {name: weight.detach().float().contiguous() for name, weight in weights.items()}
        super().__init__(wide, arch)
        self._vocab = len(self._weights["embed.weight"])
        self._puzzle_tokens = arch.puzzle_tokens
        self._arch, self._products = arch, products
        self._kernel: Kernel | None = None
        self._prepared = (0, 0)
        self._addresses = addresses(self._weights, arch.layers)

    def step(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One supervision step without gradient, by the kernel where it takes the shapes; logits in float32."""
        z_H, z_L, x = z_H.contiguous(), z_L.contiguous(), x.contiguous()
        length, rows, _ = x.shape
        if self._kernel is None or self._prepared != (length, library.thread_count()):
            self._kernel = _kernel(self._weights, self._arch, self._products, length, 1)
            self._kernel.prepare(self._addresses, 0)
            self._prepared = length, library.thread_count()
        next_z_H, next_z_L = torch.empty_like(z_H), torch.empty_like(z_L)
        logits, halt = torch.empty(length - self._puzzle_tokens, rows, self._vocab), torch.empty(rows)
        tensors = (z_H, z_L, x, next_z_H, next_z_L, logits, halt)
        self._kernel.infer(Inference(rows, h_cycles, l_cycles, *map(address, tensors)))
        return next_z_H, next_z_L, logits, halt

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        return self.step(z_H, z_L, x, 1, l_cycles)[:2]


class Incoming(NamedTuple):
    """The rows that replace finished ones: `rows` as they are, or with `maps` the originals that they are made from."""

    rows: Rows
    minimum: Tensor
    """Exploration's minimum number of steps, int32 [B]."""
    maps: tuple[Tensor, Tensor, Tensor] | None = None
    """Index of each row's original int32 [B], its symbols uint8 [B, V] and cells int16 [B, S]."""
    hints: tuple[Tensor, Tensor] | None = None
    """Order in which cells are filled in, int16 [B, S], and their number, float32 [B]."""


class Settings(NamedTuple):
    """What a step needs to know of a run."""

    batch_size: int
    halting_cost: float
    ignore: int
    h_init: Tensor
    l_init: Tensor
    puzzle_table: Tensor | None


class Results(NamedTuple):
    """What a step adds to: metrics in the order of `trm.training.metrics.SUMS`, and rows by number of steps."""

    sums: Tensor
    histogram: Tensor


class Supervision:
    """Refill, network, losses, halting and backward of a micro-batch in one call.

    `params`, `grads`: flat float32 buffers; `shape`: tokens and rows; `products`: from `products_for`.
    """

    def __init__(
        self,
        layout: Layout,
        params: Tensor,
        grads: Tensor,
        arch: Architecture,
        shape: tuple[int, int],
        settings: Settings,
        products: int,
    ):
        weights = layout.views(params)
        self._kernel = _kernel(weights, arch, products, *shape)
        self._weights, self._grads = (
            addresses(weights, arch.layers),
            addresses(layout.views(grads), arch.layers),
        )
        self._rows, self._settings = shape[1], settings
        self._scores = torch.empty(shape[1], library.RESULTS)
        self._puzzle_grads = torch.empty(shape[1], weights["embed.weight"].shape[1])

    def prepare(self, l_cycles: int) -> None:
        """Read the current weights; called once per step."""
        self._kernel.prepare(self._weights, l_cycles + 1)

    def __call__(
        self, carry: Carry, following: Carry, incoming: Incoming, recursion: Recursion, results: Results
    ) -> tuple[Tensor, float]:
        """One supervision step of each row; writes the next carry into `following`.

        Adds to the gradients and to `results`. Returns the gradient of each row's puzzle vector [B, D], which the next
        step overwrites, and the squared norm of the gradient.
        """
        run, maps = self._settings, incoming.maps
        order, hints = incoming.hints or (None, None)
        tensors = (
            *carry[:4], *carry.rows, *following[:4], *following.rows, *incoming.rows, *(maps or (None, None, None)),
            order, hints, incoming.minimum, run.h_init, run.l_init, run.puzzle_table, self._puzzle_grads, self._scores,
            *results,
        )  # fmt: skip
        symbols = maps[1].shape[1] if maps else 0
        sizes = (self._rows, *recursion, run.ignore, symbols)
        job = Job(*sizes, 1 / run.batch_size, run.halting_cost, *map(address, tensors))
        return self._puzzle_grads, self._kernel.supervise(job, self._grads)
