"""Mixing layers whose every product is our own: see `layer_forward`, `layer_backward` and, underneath, `tile`.

Weights are laid out anew whenever they change: as panels where they stand right in a product, with rows of an even
length where they stand left.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from trm.network.cpu import layer_backward, layer_forward, layers, tile
from trm.network.cpu.launch import run
from trm.network.cpu.tile import PANEL
from trm.network.eager.fused import Buffers


def usable(down: Tensor) -> bool:
    """Whether a network with this channel weight [D, I] can be computed so. TRM_CPU_PRODUCTS=0 forbids it."""
    width, inner = down.shape
    wanted = tile.AVAILABLE and os.environ.get("TRM_CPU_PRODUCTS") != "0"
    return wanted and down.dtype == torch.bfloat16 and width % 32 == 0 and inner % PANEL == 0


def panels(count: int) -> int:
    """Panels of so many columns."""
    return -(-count // PANEL)


def even(count: int) -> int:
    """The next even number."""
    return count + count % 2


class Workspace:
    """What every layer needs: kernels with scratch memory, panels, products that add to a gradient."""

    def __init__(self, buffers: Buffers):
        self._buffers = buffers

    def run(self, name: str, like: Tensor, pieces: int, scratch: int, *arguments: Tensor | int) -> None:
        """Run a kernel over so many pieces, with so many bytes of memory for each thread."""
        threads = torch.get_num_threads()
        key = ("scratch", threads, scratch)
        memory = self._buffers.get(key, like, threads, scratch, dtype=torch.uint8)
        run(name, like, pieces, 0, memory, scratch, *arguments, each=1)

    def blocks(self, rows: int) -> tuple[int, int]:
        """Blocks of rows, as many for each thread, and rows of one."""
        threads = torch.get_num_threads()
        count = math.ceil(rows / layer_forward.BLOCK / threads) * threads
        size = even(math.ceil(rows / count))
        return math.ceil(rows / size), size

    def panels(self, key: str, like: Tensor, columns: int, rows: int) -> Tensor:
        """A buffer for panels of a matrix [rows, columns]."""
        shape = panels(columns), even(rows) // 2, PANEL, 2
        return self._buffers.get((key, "panels", *shape), like, *shape)

    def row_panels(self, key: str, x: Tensor) -> Tensor:
        """The panels of a matrix."""
        out = self.panels(key, x, x.shape[1], len(x))
        run("row_panels", x, len(out), x, out, *x.shape, each=1)
        return out

    def add_gradient(
        self, total: Tensor, a: Tensor, b: Tensor, steps: tuple[int, int, int] | None = None
    ) -> None:
        """total += a @ b. `a` is the panels of its transpose, unless its steps are given: from group to group of 64
        rows, from row to row and from pair to pair."""
        rows, columns = total.shape
        steps = steps or (a[0].numel(), 2, 2 * PANEL)
        scratch, sizes = layer_backward.gradient_scratch(rows), (*total.stride(), rows, columns)
        self.run("weight_gradient", b, len(b), scratch, a, *steps, b, b.shape[1], total, *sizes)


class WeightPanels:
    """A weight [C, K] as panels: `out` multiplies rows from the right to x @ weight^T, `back` to x @ weight."""

    def __init__(self, weight: Tensor, trained: bool):
        rows, columns = weight.shape
        self._weight = weight
        self.out = weight.new_zeros(panels(rows), columns // 2, PANEL, 2)
        self.back = weight.new_zeros(panels(columns), rows // 2, PANEL, 2) if trained else None

    def prepare(self) -> None:
        """Take the weight as it is now."""
        weight = self._weight
        run("column_panels", weight, len(self.out), weight, self.out, *weight.shape, each=1)
        if self.back is not None:
            run("row_panels", weight, len(self.back), weight, self.back, *weight.shape, each=1)


class Linear(layers.Linear):
    """As `layers.Linear`."""

    def __init__(self, weight: Tensor, grad: Tensor | None, buffers: Buffers):
        super().__init__(weight, grad, buffers)
        self._space, self._panels = Workspace(buffers), WeightPanels(weight, grad is not None)

    def prepare(self) -> None:
        self._panels.prepare()

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        return self._project(x, self._panels.out, out)

    def backward(self, grad: Tensor, out: Tensor) -> Tensor:
        return self._project(grad, self._panels.back, out)

    def _project(self, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        count, size = self._space.blocks(len(x))
        sizes = (*x.shape, out.shape[1], size)
        self._space.run("project", x, count, layer_forward.project_scratch(), x, weight, out, *sizes)
        return out

    def add_gradient(self, grad: Tensor, x: Tensor) -> None:
        a, b = self._space.row_panels("input", x), self._space.row_panels("gradient", grad)
        self._space.add_gradient(self.grad.t(), a, b)


class Tokens(layers.Layer):
    """norm(x + SwiGLU(x)) over tokens; x is [L, M]."""

    tokens = True

    def __init__(self, *layer: Any):
        super().__init__(*layer)
        self._space = Workspace(self._buffers)
        self.length, self.inner = self.back.shape
        self._into = self.into.new_zeros(2 * self.inner, even(self.length))
        self._copies = [(self._into[:, : self.length], self.into)]
        if self.back_grad is not None:
            self._back_t = self.back.new_zeros(self.inner, even(self.length))
            self._into_t = self.into.new_empty(self.length, 2 * self.inner)
            self._copies += [(self._back_t[:, : self.length], self.back.t()), (self._into_t, self.into.t())]

    def prepare(self) -> None:
        for target, source in self._copies:
            target.copy_(source)

    def kept(self, x: Tensor, length: int, place: Any) -> Tensor | None:
        """The buffer for the projection in the use `place`; None without backward, which alone reads it."""
        shape = panels(x.shape[1]), self.inner, 2, PANEL
        return None if place is None else self.new(("token gate_up", place), x, *shape)

    def forward(self, x: Tensor, gate_up: Tensor | None, key: Any) -> tuple[Tensor, Tensor]:
        """The layer and 1 / rms, in buffers of `key`; the projection is left in `gate_up`, if there is one."""
        out, scale = self.result(x, key)
        places = (*((0, 0) if gate_up is None else (gate_up, 1)), out, scale)
        scratch, sizes = layer_forward.token_scratch(self.length, self.inner), (*x.shape, self.inner)
        count, weights = panels(x.shape[1]), (self._into, self.back)
        self._space.run("token_layer", x, count, scratch, x, *weights, *places, *sizes)
        return out, scale

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x through SwiGLU alone; adds the weights' gradients."""
        space, columns = self._space, x.shape[1]
        hidden = space.panels("hidden", x, self.inner, columns)
        pushed = space.panels("projection", x, 2 * self.inner, columns)
        out = self.new("mixed", x, *x.shape)
        scratch, sizes = layer_backward.token_backward_scratch(*self.back.shape), (*x.shape, self.inner)
        weights, places = (self._back_t, self._into_t), (gate_up, out, hidden, pushed)
        space.run("token_layer_backward", x, panels(columns), scratch, grad, *weights, *places, *sizes)
        steps = PANEL * columns, columns, 2
        space.add_gradient(self.back_grad, grad, hidden, steps)
        space.add_gradient(self.into_grad.t(), x, pushed, steps)
        return out


class Channels(layers.Layer):
    """norm(x + SwiGLU(x)) over channels; x is [N, D]."""

    def __init__(self, *layer: Any):
        super().__init__(*layer)
        self._space = Workspace(self._buffers)
        self.width, self.inner = self.back.shape
        trained = self.back_grad is not None
        self._into, self._back = WeightPanels(self.into, trained), WeightPanels(self.back, trained)

    def prepare(self) -> None:
        self._into.prepare()
        self._back.prepare()

    def kept(self, x: Tensor, length: int, place: Any) -> Tensor | None:
        """The buffer for the projection in the use `place`; None without backward, which alone reads it."""
        return None if place is None else self.new(("gate_up", place), x, len(x), 2 * self.inner)

    def forward(self, x: Tensor, gate_up: Tensor | None, key: Any) -> tuple[Tensor, Tensor]:
        """The layer and 1 / rms, in buffers of `key`; the projection is left in `gate_up`, if there is one."""
        out, scale = self.result(x, key)
        places = (*((0, 0) if gate_up is None else (gate_up, 1)), out, scale)
        count, size = self._space.blocks(len(x))
        scratch = layer_forward.channel_scratch(self.width, self.inner, size)
        weights, sizes = (self._into.out, self._back.out), (*x.shape, self.inner, size)
        self._space.run("channel_layer", x, count, scratch, x, *weights, *places, *sizes)
        return out, scale

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x through SwiGLU alone; adds the weights' gradients."""
        space, rows = self._space, len(x)
        hidden = space.panels("hidden", x, self.inner, rows)
        pushed = space.panels("projection", x, 2 * self.inner, rows)
        out = self.new("mixed", x, *x.shape)
        count, size = space.blocks(rows)
        scratch = layer_backward.channel_backward_scratch(self.inner, size)
        weights, sizes = (self._back.back, self._into.back), (*x.shape, self.inner, size)
        places = gate_up, out, hidden, pushed
        space.run("channel_layer_backward", x, count, scratch, grad, *weights, *places, *sizes)
        space.add_gradient(self.back_grad, space.row_panels("gradient", grad), hidden)
        space.add_gradient(self.into_grad.t(), space.row_panels("input", x), pushed)
        return out
