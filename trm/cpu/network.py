"""The recursion rounds for processors: matrix products of the library, and one compiled pass between two of them.

Compared with `trm.model.fused`: SiLU and its product, residual and norm are one pass each, in both directions;
the hidden values are computed again in backward, not kept; attention is batched products, its softmax
and rotation passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.cpu.kernels import COLUMNS
from trm.cpu.launch import run
from trm.model import fused, network
from trm.model.fused import Buffers
from trm.model.network import Architecture


class Layer:
    """One mixing layer: two weights in the forward dtype and their gradients' float32 sums (None: inference)."""

    def __init__(self, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor] | None, buffers: Buffers):
        self.into, self.back = weights
        self.into_grad, self.back_grad = grads or (None, None)
        self._buffers = buffers

    def new(self, key: Any, like: Tensor, *shape: int) -> Tensor:
        """A buffer shared by all layers and uses: good until the next one asks for it."""
        return self._buffers.get((key, *shape), like, *shape)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """total += a @ b, the sum over uses in float32."""
        if total.dtype == a.dtype:
            total.addmm_(a, b)
            return
        product = torch.mm(a, b, out=self.new("product", a, *total.shape))
        if total.is_contiguous():
            run("accumulate", product, len(total), total, product, total.shape[1])
        else:
            rows, columns = total.t().shape
            run("accumulate_transposed", product, rows, total.t(), product, columns, rows)


class SwiGLU(Layer):
    """SwiGLU without its residual; x is [L, M] over tokens, weights on the left, or [N, D] over channels."""

    tokens: bool

    def forward(self, x: Tensor, gate_up: Tensor) -> Tensor:
        """SwiGLU(x); the projection is left in `gate_up`."""
        if self.tokens:
            torch.mm(self.into, x, out=gate_up)
        else:
            torch.mm(x, self.into.t(), out=gate_up)
        hidden = self.new("hidden", x, *self._hidden_shape(x))
        run("gate", gate_up, len(hidden), *self._halves(gate_up), hidden, *self._strides(hidden))
        out = self.new("mixed", x, *x.shape)
        return (
            torch.mm(self.back, hidden, out=out) if self.tokens else torch.mm(hidden, self.back.t(), out=out)
        )

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x through SwiGLU alone; adds the weights' gradients; overwrites `gate_up`."""
        hidden = self.new("hidden", x, *self._hidden_shape(x))
        if self.tokens:
            torch.mm(self.back.t(), grad, out=hidden)
        else:
            torch.mm(grad, self.back, out=hidden)
        run("gate_backward", gate_up, len(hidden), *self._halves(gate_up), hidden, *self._strides(hidden))
        out = self.new("mixed", x, *x.shape)
        if self.tokens:
            self.add_product(self.back_grad, grad, hidden.t())
            # the smaller operand first: three times as fast where tokens are few
            self.add_product(self.into_grad.t(), x, gate_up.t())
            return torch.mm(self.into.t(), gate_up, out=out)
        self.add_product(self.back_grad, grad.t(), hidden)
        self.add_product(self.into_grad, gate_up.t(), x)
        return torch.mm(gate_up, self.into, out=out)

    def projection_shape(self, x: Tensor) -> tuple[int, int]:
        """Shape of `gate_up` for x."""
        return (len(self.into), x.shape[1]) if self.tokens else (len(x), len(self.into))

    def _hidden_shape(self, x: Tensor) -> tuple[int, int]:
        inner = self.back.shape[1]
        return (inner, x.shape[1]) if self.tokens else (len(x), inner)

    def _halves(self, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        return fused.halves(gate_up, self.tokens)

    def _strides(self, hidden: Tensor) -> tuple[int, int]:
        columns = hidden.shape[1]
        return columns, columns if self.tokens else 2 * columns


class Tokens(SwiGLU):
    """SwiGLU over tokens."""

    tokens = True


class Channels(SwiGLU):
    """SwiGLU over channels."""

    tokens = False


class Heads(NamedTuple):
    """What attention keeps for backward: turned queries and keys, values [B H, L, K], and probabilities [B H, L, L]."""

    q: Tensor
    k: Tensor
    v: Tensor
    probabilities: Tensor


class Attention(Layer):
    """Attention without its residual; x is [L * B, D]."""

    def __init__(self, *layer: Any, heads: int, rope: bool):
        super().__init__(*layer)
        self.heads, self.rope = heads, rope
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def kept(self, x: Tensor, length: int, place: Any) -> Heads:
        """Buffers of the use `place`."""
        many, width = len(x) // length * self.heads, x.shape[1] // self.heads
        q, k, v = (self.new((name, place), x, many, length, width) for name in "qkv")
        return Heads(q, k, v, self.new(("probabilities", place), x, many, length, length))

    def forward(self, x: Tensor, kept: Heads) -> Tensor:
        """attention(x); `kept` is filled."""
        qkv = torch.mm(x, self.into.t(), out=self.new("qkv", x, len(x), len(self.into)))
        run("split_heads", qkv, len(x), qkv, *kept[:3], *self._angles(kept.q), *self._sizes(x, kept.q))
        q, k, v, probabilities = kept
        torch.bmm(q, k.transpose(1, 2), out=probabilities)
        length = q.shape[1]
        run("softmax", probabilities, len(q) * length, probabilities, length)
        attended = torch.bmm(probabilities, v, out=self.new("attended", x, *v.shape))
        flat = self._join(attended, x)
        return torch.mm(flat, self.back.t(), out=self.new("mixed", x, *x.shape))

    def backward(self, grad: Tensor, x: Tensor, kept: Heads) -> Tensor:
        """Gradient of x through attention alone; adds the weights' gradients."""
        q, k, v, probabilities = kept
        many, length = q.shape[:2]
        pushed = torch.mm(grad, self.back, out=self.new("mixed", x, *x.shape))
        d_attended = self.new("d attended", x, *v.shape)
        run("join_heads", x, len(x), pushed, d_attended, *self._sizes(x, q), 1)
        attended = torch.bmm(probabilities, v, out=self.new("attended", x, *v.shape))
        self.add_product(self.back_grad, grad.t(), self._join(attended, x))
        dv = torch.bmm(probabilities.transpose(1, 2), d_attended, out=attended)
        scores = torch.bmm(d_attended, v.transpose(1, 2), out=self.new("d scores", x, many, length, length))
        run("softmax_backward", scores, many * length, scores, probabilities, length)
        dk = torch.bmm(scores.transpose(1, 2), q, out=d_attended)
        dq = torch.bmm(scores, k, out=self.new("d q", x, *q.shape))
        qkv = self.new("qkv", x, len(x), len(self.into))
        run("split_heads_backward", qkv, len(x), qkv, dq, dk, dv, *self._angles(q), *self._sizes(x, q))
        self.add_product(self.into_grad, qkv.t(), x)
        return torch.mm(qkv, self.into, out=pushed)

    def _join(self, attended: Tensor, x: Tensor) -> Tensor:
        flat = self.new("joined", x, *x.shape)
        run("join_heads", x, len(x), attended, flat, *self._sizes(x, attended), 0)
        return flat

    def _sizes(self, x: Tensor, q: Tensor) -> tuple[int, int, int, int]:
        length, width = q.shape[1:]
        return len(x) // length, self.heads, width, length

    def _angles(self, q: Tensor) -> tuple[Tensor, Tensor]:
        length, width = q.shape[1:]
        if length not in self._tables:
            cos, sin = (table[:, 0, 0, : width // 2] for table in network.rope_tables(length, width))
            if not self.rope:
                cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
            self._tables[length] = cos.contiguous(), sin.contiguous()
        return self._tables[length]


class Kept(NamedTuple):
    """What backward needs of one block: its input, after the mixing, and its output, with the norms' 1 / rms."""

    x: Tensor
    y: Tensor
    y_scale: Tensor
    mixer: Tensor | Heads
    gate_up: Tensor
    out: Tensor
    out_scale: Tensor


class CompiledRounds(fused.Rounds):
    """As `fused.Rounds`: results lie in buffers and hold until the next call, which may read them."""

    def __init__(self, weights: dict[str, Tensor], grads: dict[str, Tensor] | None, arch: Architecture):
        self._buffers = Buffers()
        self._blocks: list[tuple[Tokens | Attention, Channels]] = []

        def pair(prefix: str, first: str, second: str) -> tuple[Any, ...]:
            names = prefix + first, prefix + second
            own = tuple(weights[name] for name in names)
            return own, tuple(grads[name] for name in names) if grads else None, self._buffers

        for i in range(arch.layers):
            prefix = f"blocks.{i}."
            if prefix + "token_mlp.down" in weights:
                mixer = Tokens(*pair(prefix + "token_mlp.", "gate_up", "down"))
            else:
                layer = pair(prefix + "attention.", "qkv", "out")
                mixer = Attention(*layer, heads=arch.heads, rope=arch.rope)
            self._blocks.append((mixer, Channels(*pair(prefix + "channel_mlp.", "gate_up", "down"))))

    def _new(self, key: Any, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self._buffers.get((key, *shape), like, *shape, dtype=dtype)

    def _norm(self, x: Tensor, mixed: Tensor, dim: int, key: Any) -> tuple[Tensor, Tensor]:
        """RMSNorm of x + mixed and 1 / rms."""
        out = self._new(key, x, *x.shape)
        scale = self._new(("scale", key), x, x.shape[1 - dim], dtype=torch.float32)
        if dim:
            run("norm_rows", x, len(x), x, mixed, out, scale, x.shape[1])
        else:
            run("norm_columns", x, -(-x.shape[1] // COLUMNS), x, mixed, out, scale, *x.shape)
        return out, scale

    def _norm_backward(
        self, grads: tuple[Tensor, Tensor], y: Tensor, scale: Tensor, dim: int, key: str
    ) -> Tensor:
        """Gradient before the norm from the two parts of the one after it."""
        grads = tuple(grad.view(y.shape) for grad in grads)
        out = self._new(key, y, *y.shape)
        if dim:
            run("norm_rows_backward", y, len(y), *grads, y, out, scale, y.shape[1])
        else:
            sums = self._new("sums", y, y.shape[1], dtype=torch.float32)
            groups = -(-y.shape[1] // COLUMNS)
            run("norm_columns_backward", y, groups, *grads, y, out, scale, *y.shape, sums)
        return out

    @torch.no_grad()
    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `network.recursion_round`; what backward needs is appended to `saved`."""
        return super().forward(z_H, z_L, x, l_cycles, saved)

    def _stack(self, x_LBD: Tensor, use: int, role: str, saved: list[Any] | None) -> Tensor:
        # without backward one set of buffers serves every layer and use
        records = []
        length, batch, width = x_LBD.shape
        rows, columns = (length * batch, width), (length, batch * width)
        for i, (mixer, channels) in enumerate(self._blocks):
            place = (use, i) if saved is not None else ()
            last = role if i == len(self._blocks) - 1 else "between"
            if isinstance(mixer, Tokens):
                flat = x_LBD.view(columns)
                inner = self._new(("token gate_up", place), flat, *mixer.projection_shape(flat))
                y, y_scale = self._norm(flat, mixer.forward(flat, inner), 0, ("y", place))
            else:
                flat = x_LBD.view(rows)
                inner = mixer.kept(flat, length, place)
                y, y_scale = self._norm(flat, mixer.forward(flat, inner), 1, ("y", place))
            flat = y.view(rows)
            gate_up = self._new(("gate_up", place), flat, *channels.projection_shape(flat))
            out, out_scale = self._norm(flat, channels.forward(flat, gate_up), 1, (last, place))
            if saved is not None:
                records.append(Kept(x_LBD, y, y_scale, inner, gate_up, out, out_scale))
            x_LBD = out.view(length, batch, width)
        if saved is not None:
            saved.append(records)
        return x_LBD

    @torch.no_grad()
    def backward(self, grad: Tensor, saved: list[Any]) -> Tensor:
        """Gradient of x from that of z_H; adds the weights' gradients."""
        nothing = self._new("nothing", grad, *grad.shape).zero_()
        grads = self._stack_backward((grad.contiguous(), nothing), saved.pop())
        total = self._new("total", grad, *grad.shape, dtype=torch.float32).zero_()
        while saved:
            grads = self._stack_backward(grads, saved.pop())
            for part in grads:
                run("accumulate", part, len(total), total, part, total[0].numel())
        return total.to(grad.dtype)

    def _stack_backward(self, grads: tuple[Tensor, Tensor], records: list[Kept]) -> tuple[Tensor, Tensor]:
        """The input's gradient, as two parts to be added, from that of the output."""
        for (mixer, channels), kept in zip(self._blocks[::-1], records[::-1]):
            length, batch, width = kept.x.shape
            total = self._norm_backward(grads, kept.out, kept.out_scale, 1, "above")
            pushed = channels.backward(total, kept.y.view(total.shape), kept.gate_up)
            dim = 0 if isinstance(mixer, Tokens) else 1
            total = self._norm_backward((total, pushed), kept.y, kept.y_scale, dim, "below")
            grads = total, mixer.backward(total, kept.x.view(total.shape), kept.mixer)
        shape = length, batch, width
        return grads[0].view(shape), grads[1].view(shape)
