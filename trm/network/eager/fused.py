"""The network with a hand-written backward: fewer and larger operations than `plain`.

Weights are cast once per step, residual additions are fused into matrix products, the gradients of all uses of a weight
are summed in float32, and activations are in buffers that are reused from step to step.
Shapes: M = B * D columns of token mixing, N = L * B rows of channel mixing, I inner width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.network import definition as network
from trm.network.definition import EPS, Architecture, Weights
from trm.network.eager.plain import PlainNetwork
from trm.network.parameters import Layout

aten = torch.ops.aten


class Buffers:
    """Scratch tensors by key, reused because allocating memory costs more than writing to it."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def get(
        self, key: tuple[Any, ...], like: Tensor, *shape: int, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor of `shape` with the device (and dtype) of `like`; it holds the contents of its last use."""
        tensor = self._tensors.get(key)
        if tensor is None or tensor.shape != shape:
            tensor = self._tensors[key] = like.new_empty(shape, dtype=dtype)
        return tensor


class SwiGLU(NamedTuple):
    """A SwiGLU layer: weights in the forward dtype and their float32 gradients."""

    gate_up: Tensor
    down: Tensor
    grads: tuple[Tensor, ...]
    """Of both weights; empty for inference."""
    tokens: bool
    """Over tokens (x is [L, M], weights on the left) or channels (x is [N, D], weights on the right)."""


def add_product(total: Tensor, a: Tensor, b: Tensor, buffers: Buffers) -> None:
    """total += a @ b, accumulated in the dtype of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        shape = a.shape[0], b.shape[1]
        total.add_(torch.mm(a, b, out=buffers.get(("product", *shape), a, *shape)))


def widened(x: Tensor, buffers: Buffers, key: str) -> Tensor:
    """x in at least float32: x itself, or a copy in a buffer."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x if x.dtype == wide else buffers.get((key, *x.shape), x, *x.shape, dtype=wide).copy_(x)


def normalise(x: Tensor, dim: int, buffers: Buffers, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """RMSNorm of x and 1 / rms, in at least float32."""
    wide = widened(x, buffers, "wide")
    scratch = buffers.get(("scratch", *x.shape), wide, *x.shape)
    scale = torch.mul(wide, wide, out=scratch).mean(dim, keepdim=True).add_(EPS).rsqrt_()
    return buffers.get((*key, "norm"), x, *x.shape).copy_(torch.mul(wide, scale, out=scratch)), scale


def normalise_backward(grad: Tensor, y: Tensor, scale: Tensor, dim: int, buffers: Buffers) -> Tensor:
    """Gradient of the norm's input, given that of its output, the output and 1 / rms."""
    grad, wide = widened(grad, buffers, "wide"), widened(y, buffers, "wide y")
    scratch = buffers.get(("scratch", *y.shape), wide, *y.shape)
    inner = torch.mul(grad, wide, out=scratch).mean(dim, keepdim=True)
    torch.addcmul(grad, wide, inner, value=-1, out=scratch)
    return buffers.get(("grad norm", *y.shape), y, *y.shape).copy_(scratch.mul_(scale))


def halves(gate_up: Tensor, tokens: bool) -> tuple[Tensor, Tensor]:
    """The gate and up parts of the fused projection."""
    inner = gate_up.shape[0 if tokens else 1] // 2
    return (gate_up[:inner], gate_up[inner:]) if tokens else (gate_up[:, :inner], gate_up[:, inner:])


class Activations(NamedTuple):
    """Saved for backward of one SwiGLU layer."""

    x: Tensor
    gate_up: Tensor
    silu: Tensor
    hidden: Tensor


def swiglu(x: Tensor, layer: SwiGLU, buffers: Buffers, key: tuple[Any, ...]) -> tuple[Tensor, Activations]:
    """x + SwiGLU(x)."""
    wide, inner = layer.gate_up.shape[0], layer.down.shape[1]
    count = x.shape[1] if layer.tokens else x.shape[0]
    if layer.tokens:
        gate_up = torch.mm(layer.gate_up, x, out=buffers.get((*key, "gu"), x, wide, count))
    else:
        gate_up = torch.mm(x, layer.gate_up.t(), out=buffers.get((*key, "gu"), x, count, wide))
    gate, up = halves(gate_up, layer.tokens)
    shape = (inner, count) if layer.tokens else (count, inner)
    silu = aten.silu.out(gate, out=buffers.get((*key, "silu"), x, *shape))
    hidden = torch.mul(silu, up, out=buffers.get((*key, "h"), x, *shape))
    left, right = (layer.down, hidden) if layer.tokens else (hidden, layer.down.t())
    total = torch.addmm(x, left, right, out=buffers.get(("total", *x.shape), x, *x.shape))
    return total, Activations(x, gate_up, silu, hidden)


def swiglu_backward(grad: Tensor, saved: Activations, layer: SwiGLU, buffers: Buffers) -> Tensor:
    """Gradient of x, given that of x + SwiGLU(x); accumulates weight gradients; overwrites saved activations."""
    x, gate_up, silu, hidden = saved
    gate_up_grad, down_grad = layer.grads
    gate, up = halves(gate_up, layer.tokens)
    pushed = buffers.get(("grad h", layer.tokens), x, *hidden.shape)
    if layer.tokens:
        add_product(down_grad, grad, hidden.t(), buffers)
        torch.mm(layer.down.t(), grad, out=pushed)
    else:
        add_product(down_grad, grad.t(), hidden, buffers)
        torch.mm(grad, layer.down, out=pushed)
    torch.mul(pushed, up, out=hidden)
    torch.mul(pushed, silu, out=up)
    aten.silu_backward.grad_input(hidden, gate, grad_input=gate)
    out = buffers.get(("grad swiglu", *x.shape), x, *x.shape)
    if layer.tokens:
        add_product(gate_up_grad.t(), x, gate_up.t(), buffers)
        return torch.addmm(grad, layer.gate_up.t(), gate_up, out=out)
    add_product(gate_up_grad, gate_up.t(), x, buffers)
    return torch.addmm(grad, gate_up, layer.gate_up, out=out)


class Attention(NamedTuple):
    """An attention layer: weights in the forward dtype, their float32 gradients, and what computes the heads."""

    qkv: Tensor
    out: Tensor
    grads: tuple[Tensor, ...]
    core: Callable[[Tensor], Tensor]
    """Projections [L, B, 3 D] to head outputs [L, B, D]."""


def attention_core(heads: int, cos: Tensor | None, sin: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Scaled dot-product attention, with rotary embeddings if `cos` and `sin` are given."""

    def core(qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(2)
        if cos is not None and sin is not None:
            q, k = network.rotate(q, cos, sin), network.rotate(k, cos, sin)
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)

    return core


class FusedNetwork:
    """Same interface as `plain.PlainNetwork`; `rounds` computes the recursion rounds."""

    lookup: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.embedding)
    """The embedding lookup."""

    def __init__(
        self,
        layout: Layout,
        params: Tensor,
        grads: Tensor,
        arch: Architecture,
        rounds: Callable[[Weights, Weights, Architecture], Rounds] | None = None,
    ):
        self._plain = PlainNetwork(layout, params, grads, arch)
        self._params, self._arch = params, arch
        cast = params.dtype != arch.dtype
        self._work = torch.empty_like(params, dtype=arch.dtype) if cast else params
        self.rounds = (rounds or Rounds)(layout.views(self._work), layout.views(grads), arch)

    def prepare(self) -> None:
        """Cast the current weights and zero the gradients."""
        self._plain.prepare()
        if self._work is not self._params:
            self._work.copy_(self._params)
        self.rounds.prepare()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Same as `network.supervision_step`."""
        x = network.embed(inputs, puzzle, self._plain.weights, self._arch, self.lookup)
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = self.rounds.forward(z_H, z_L, x, l_cycles)
        z_H, z_L = LastRound.apply(x, z_H, z_L, self.rounds, l_cycles)
        return (z_H, z_L, *network.heads(z_H, self._plain.weights, self._arch))


class LastRound(torch.autograd.Function):
    """The round with gradient: differentiable in x; weight gradients are accumulated as a side effect."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z_H: Tensor, z_L: Tensor, rounds: Rounds, l_cycles: int
    ) -> tuple[Tensor, Tensor]:
        ctx.rounds, ctx.saved = rounds, []
        ctx.set_materialize_grads(False)
        z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles, ctx.saved)
        z_H, z_L = z_H.clone(), z_L.clone()  # results must not alias buffers
        ctx.mark_non_differentiable(z_L)
        return z_H, z_L

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor, grad_L: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.rounds.backward(grad_H, ctx.saved), None, None, None, None


class Rounds:
    """Recursion rounds with weights in the forward dtype and float32 gradients, by name; no `grads` for inference."""

    multiple = 1

    def __init__(self, weights: Weights, grads: Weights | None, arch: Architecture):
        self._arch, self._buffers = arch, Buffers()
        self._core: Callable[[Tensor], Tensor] | None = None

        def layer(kind: str, first: str, second: str) -> Any:
            return self._layer(
                kind, (weights[first], weights[second]), (grads[first], grads[second]) if grads else ()
            )

        self._blocks: list[tuple[Any, Any]] = []
        for prefix in (f"blocks.{i}." for i in range(arch.layers)):
            if prefix + "token_mlp.down" in weights:
                mixer = layer("tokens", prefix + "token_mlp.gate_up", prefix + "token_mlp.down")
            else:
                mixer = layer("attention", prefix + "attention.qkv", prefix + "attention.out")
            channels = layer("channels", prefix + "channel_mlp.gate_up", prefix + "channel_mlp.down")
            self._blocks.append((mixer, channels))

    def _layer(self, kind: str, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, ...]) -> Any:
        """A mixing layer; `kind`: tokens, attention or channels."""
        if kind == "attention":
            return Attention(*weights, grads, core=self._attend)
        return SwiGLU(*weights, grads, tokens=kind == "tokens")

    def _attend(self, qkv: Tensor) -> Tensor:
        if self._core is None:
            cos = sin = None
            if self._arch.rope:
                head_width = qkv.shape[-1] // 3 // self._arch.heads
                cos, sin = network.rope_tables(qkv.shape[0], head_width, qkv.device)
            self._core = attention_core(self._arch.heads, cos, sin)
        return self._core(qkv)

    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Same as `network.recursion_round`; appends what backward needs to `saved`.

        The results are in buffers, valid until the next call, which may take them as inputs.
        """
        buffers = self._buffers
        inject = torch.add(z_H, x, out=buffers.get(("inject",), x, *x.shape))
        for use in range(l_cycles):
            key = ("into z_L",) if saved is None else ("into z_L", use)
            z_L = self._stack(torch.add(z_L, inject, out=buffers.get(key, x, *x.shape)), use, "z_L", saved)
        into = torch.add(z_H, z_L, out=buffers.get(("into z_H", saved is None), x, *x.shape))
        return self._stack(into, l_cycles, "z_H", saved), z_L

    def prepare(self) -> None:
        """Called after the weights have changed."""

    def replicate(self, tensor: Tensor) -> Tensor:
        """The tensor itself: there is one device."""
        return tensor

    def backward(self, grad: Tensor, saved: list[Any]) -> Tensor:
        """Gradient of x, given that of z_H; accumulates weight gradients."""
        grad = self._stack_backward(grad, saved.pop())  # through the update of z_H, which does not read x
        grad = self._stack_backward(grad, saved.pop())
        total = grad.to(torch.promote_types(grad.dtype, torch.float32), copy=True)
        while saved:
            grad = self._stack_backward(grad, saved.pop())
            total.add_(grad)
        return total.to(grad.dtype)

    def _stack(self, x_LBD: Tensor, use: int, role: str, saved: list[Any] | None) -> Tensor:
        # without backward, all layers and uses share one set of buffers
        records = []
        length, batch, width = x_LBD.shape
        for i, (mixer, channel) in enumerate(self._blocks):
            place = (use, i) if saved is not None else ()
            last = role if i == len(self._blocks) - 1 else "between"
            if isinstance(mixer, SwiGLU):
                total, mixed = swiglu(x_LBD.reshape(length, -1), mixer, self._buffers, (*place, "t"))
                y, scale = normalise(total, 0, self._buffers, (*place, "t"))
            else:
                total, mixed = self._attention(x_LBD, mixer, saved is not None)
                y, scale = normalise(total, -1, self._buffers, (*place, "t"))
            flat = y.reshape(length * batch, width)
            total, squeezed = swiglu(flat, channel, self._buffers, (*place, "c"))
            out, out_scale = normalise(total, -1, self._buffers, (*place, last))
            x_LBD = out.view(length, batch, width)
            if saved is not None:
                records.append((mixed, y, scale, squeezed, out, out_scale))
        if saved is not None:
            saved.append(records)
        return x_LBD

    def _stack_backward(self, grad_LBD: Tensor, records: list[Any]) -> Tensor:
        shape = grad_LBD.shape
        grad = grad_LBD.reshape(-1, shape[-1])
        for (mixer, channel), record in zip(self._blocks[::-1], records[::-1]):
            mixed, y, scale, squeezed, out, out_scale = record
            grad = normalise_backward(grad, out, out_scale, -1, self._buffers)
            grad = swiglu_backward(grad, squeezed, channel, self._buffers)
            if isinstance(mixer, SwiGLU):
                grad = normalise_backward(grad.view(y.shape), y, scale, 0, self._buffers)
                grad = swiglu_backward(grad, mixed, mixer, self._buffers)
            else:
                grad = normalise_backward(grad, y, scale, -1, self._buffers)
                grad = self._attention_backward(grad, mixed, mixer)
            grad = grad.view(-1, shape[-1])
        return grad.view(shape)

    def _attention(self, x_LBD: Tensor, layer: Attention, keep: bool) -> tuple[Tensor, Any]:
        """x + attention(x) as [N, D]; keeps the core's autograd graph for backward."""
        flat = x_LBD.reshape(-1, x_LBD.shape[-1])
        qkv = (flat @ layer.qkv.t()).view(*x_LBD.shape[:2], -1)
        with torch.set_grad_enabled(keep):
            leaf = qkv.detach().requires_grad_(keep)
            attended = layer.core(leaf)
        mixed = attended.detach().reshape(flat.shape)
        total = torch.addmm(
            flat, mixed, layer.out.t(), out=self._buffers.get(("total", *flat.shape), flat, *flat.shape)
        )
        return total, (flat, leaf, attended, mixed)

    def _attention_backward(self, grad: Tensor, saved: Any, layer: Attention) -> Tensor:
        flat, leaf, attended, mixed = saved
        qkv_total, out_total = layer.grads
        add_product(out_total, grad.t(), mixed, self._buffers)
        pushed = (grad @ layer.out).view(attended.shape)
        (qkv_grad,) = torch.autograd.grad(attended, leaf, pushed)
        qkv_grad = qkv_grad.reshape(flat.shape[0], -1)
        add_product(qkv_total, qkv_grad.t(), flat, self._buffers)
        return torch.addmm(grad, qkv_grad, layer.qkv)
