"""Mixing layers whose every product is our own: see `layer_forward`, `layer_backward` and, underneath, `tile`.

Weights are laid out anew whenever they change: as panels where they stand right in a product, with rows of an even
length where they stand left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trm.cpu import layer_backward, layer_forward, tile
from trm.cpu.launch import run
from trm.cpu.layers import Layer
from trm.cpu.tile import PANEL


def usable(down: Tensor) -> bool:
    """Whether blocks with this channel weight [D, I] can be computed so."""
    width, inner = down.shape
    fits = (width % PANEL == 0 or width == PANEL // 2) and inner % PANEL == 0
    return tile.AVAILABLE and down.dtype == torch.bfloat16 and fits


def panels(count: int) -> int:
    """Panels of so many columns."""
    return -(-count // PANEL)


def even(count: int) -> int:
    """The next even number."""
    return count + count % 2


class BlockedLayer(Layer):
    """What both mixings share: inner width I, and the launch of kernels that need scratch memory."""

    def __init__(self, *layer: Any):
        super().__init__(*layer)
        self.inner = self.back.shape[1]
        trained = self.back_grad is not None
        self._laid_out: list[tuple[Tensor, Tensor]] = []
        self._lay_out(trained)

    def _lay_out(self, trained: bool) -> None:
        raise NotImplementedError

    def _copied(self, source: Tensor, *shape: int) -> Tensor:
        """A tensor of `shape`, zero beyond the view `source`, which `prepare` copies into its beginning."""
        target = source.new_zeros(shape)
        self._laid_out.append((target[tuple(slice(size) for size in source.shape)], source))
        return target

    def prepare(self) -> None:
        for target, source in self._laid_out:
            target.copy_(source)

    def kept(self, x: Tensor, length: int, place: Any) -> Tensor | None:
        """The buffer for the projection in the use `place`; None without backward, which alone reads it."""
        return None if place is None else self.new((type(self).__name__, place), x, *self._kept_shape(x))

    def _kept_shape(self, x: Tensor) -> tuple[int, ...]:
        raise NotImplementedError

    def _run(self, name: str, like: Tensor, pieces: int, scratch: int, *arguments: Tensor | int) -> None:
        threads = torch.get_num_threads()
        memory = self.new("scratch", like, threads, scratch, dtype=torch.uint8)
        run(name, like, pieces, 0, memory, scratch, *arguments, each=1)

    def _panels(self, key: str, like: Tensor, columns: int, rows: int) -> Tensor:
        return self.new((key, "panels"), like, panels(columns), even(rows) // 2, PANEL, 2)

    def _add_gradient(
        self, total: Tensor, a: Tensor, steps: tuple[int, int, int], b: Tensor, transposed: bool = False
    ) -> None:
        """total += a @ b, or its transpose; steps in `a` from group to group of 64 rows, row to row, pair to pair."""
        out = total.t() if transposed else total
        rows, columns = out.shape
        scratch, sizes = layer_backward.gradient_scratch(rows), (*out.stride(), rows, columns)
        self._run("weight_gradient", b, len(b), scratch, a, *steps, b, b.shape[1], out, *sizes)


class Tokens(BlockedLayer):
    """norm(x + SwiGLU(x)) over tokens; x is [L, M]."""

    tokens = True

    def _lay_out(self, trained: bool) -> None:
        self.length = len(self.back)
        self._into = self._copied(self.into, 2 * self.inner, even(self.length))
        if trained:
            self._back_t = self._copied(self.back.t(), self.inner, even(self.length))
            self._into_t = self._copied(self.into.t(), self.length, 2 * self.inner)

    def _kept_shape(self, x: Tensor) -> tuple[int, ...]:
        return panels(x.shape[1]), self.inner, 2, PANEL

    def forward(self, x: Tensor, gate_up: Tensor | None, key: Any) -> tuple[Tensor, Tensor]:
        """The layer and 1 / rms, in buffers of `key`; the projection is left in `gate_up`, if there is one."""
        out, scale = self.result(x, key)
        keep = (0, 0) if gate_up is None else (gate_up, 1)
        scratch = layer_forward.token_scratch(self.length, self.inner)
        sizes = (*x.shape, self.inner)
        self._run(
            "token_layer", x, panels(x.shape[1]), scratch, x, self._into, self.back, *keep, out, scale, *sizes
        )
        return out, scale

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x through SwiGLU alone; adds the weights' gradients."""
        columns = x.shape[1]
        hidden = self._panels("hidden", x, self.inner, columns)
        pushed = self._panels("projection", x, 2 * self.inner, columns)
        out = self.new("mixed", x, *x.shape)
        scratch = layer_backward.token_backward_scratch(self.length, self.inner)
        weights, sizes = (self._back_t, self._into_t), (*x.shape, self.inner)
        places = gate_up, out, hidden, pushed
        self._run("token_layer_backward", x, panels(columns), scratch, grad, *weights, *places, *sizes)
        steps = PANEL * columns, columns, 2
        self._add_gradient(self.back_grad, grad, steps, hidden)
        self._add_gradient(self.into_grad, x, steps, pushed, transposed=True)
        return out


class Channels(BlockedLayer):
    """norm(x + SwiGLU(x)) over channels; x is [N, D]."""

    def _lay_out(self, trained: bool) -> None:
        self.width = width = len(self.back)
        self._into = self._as_panels(self.into.t())
        self._back = self._as_panels(self.back.t())
        if trained:
            self._into_t = self._as_panels(self.into)
            self._back_t = self._as_panels(self.back)

    def _as_panels(self, matrix: Tensor) -> Tensor:
        rows, columns = matrix.shape
        whole = matrix.unflatten(0, (rows // 2, 2)).unflatten(2, (panels(columns), min(PANEL, columns)))
        return self._copied(whole.permute(2, 0, 3, 1), panels(columns), rows // 2, PANEL, 2)

    def _kept_shape(self, x: Tensor) -> tuple[int, ...]:
        return len(x), 2 * self.inner

    def _blocks(self, rows: int) -> tuple[int, int]:
        """Blocks of rows, about as many for each thread, and rows of one."""
        threads = torch.get_num_threads()
        count = -(--(-rows // layer_forward.BLOCK) // threads) * threads
        size = even(-(-rows // count))
        return -(-rows // size), size

    def forward(self, x: Tensor, gate_up: Tensor | None, key: Any) -> tuple[Tensor, Tensor]:
        """The layer and 1 / rms, in buffers of `key`; the projection is left in `gate_up`, if there is one."""
        out, scale = self.result(x, key)
        keep = (0, 0) if gate_up is None else (gate_up, 1)
        count, size = self._blocks(len(x))
        scratch = layer_forward.channel_scratch(self.width, self.inner, size)
        weights, sizes = (self._into, self._back), (len(x), self.width, self.inner, size)
        self._run("channel_layer", x, count, scratch, x, *weights, *keep, out, scale, *sizes)
        return out, scale

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x through SwiGLU alone; adds the weights' gradients."""
        rows = len(x)
        hidden = self._panels("hidden", x, self.inner, rows)
        pushed = self._panels("projection", x, 2 * self.inner, rows)
        out = self.new("mixed", x, *x.shape)
        count, size = self._blocks(rows)
        scratch = layer_backward.channel_backward_scratch(self.inner, size)
        weights, sizes = (self._back_t, self._into_t), (rows, self.width, self.inner, size)
        places = gate_up, out, hidden, pushed
        self._run("channel_layer_backward", x, count, scratch, grad, *weights, *places, *sizes)
        grad, x = self._row_panels("gradient", grad), self._row_panels("input", x)
        steps = grad[0].numel(), 2, 2 * PANEL
        self._add_gradient(self.back_grad, grad, steps, hidden)
        self._add_gradient(self.into_grad, x, steps, pushed, transposed=True)
        return out

    def _row_panels(self, key: str, x: Tensor) -> Tensor:
        out = self._panels(key, x, self.width, len(x))
        self._run("row_panels", x, len(out), 0, x, out, *x.shape)
        return out
