"""The network as XLA's TPU compiler likes it: same function as `trm.model.network`, other order of the same products.

Shapes as there: L tokens, B rows, D width, H heads, K head width, I inner width.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.errors import UserError
from trm.model import network
from trm.model.network import Architecture, Weights, rms_norm
from trm.model.parameters import Layout

REMAT_VARIABLE = "TRM_XLA_REMAT"
HBM_BYTES = 30.75 * 2**30  # what a program may fill of a v4 chip's 32 GiB
HBM_SHARE = 0.9  # of it that may be filled by estimate


def attention(x_LBD: Tensor, qkv: Tensor, out: Tensor, heads: int, rope: bool) -> Tensor:
    """Bidirectional attention by two einsums; scores and softmax stay in the forward dtype."""
    q, k, v = F.linear(x_LBD, qkv.to(x_LBD.dtype)).unflatten(-1, (3, heads, -1)).unbind(2)
    if rope:
        cos, sin = network.rope_tables(x_LBD.shape[0], q.shape[-1], x_LBD.device)
        q, k = network.rotate(q, cos, sin), network.rotate(k, cos, sin)
    scores = torch.einsum("qbhk,sbhk->bhqs", q * q.shape[-1] ** -0.5, k)
    y_LBHK = torch.einsum("bhqs,sbhk->qbhk", scores.softmax(-1), v)
    return F.linear(y_LBHK.flatten(2), out.to(x_LBD.dtype))


def block(x_LBD: Tensor, w: Weights, prefix: str, arch: Architecture) -> Tensor:
    """One post-norm block."""
    if prefix + "token_mlp.down" in w:
        mixed = network.swiglu_tokens(x_LBD, w[prefix + "token_mlp.gate_up"], w[prefix + "token_mlp.down"])
        x_LBD = rms_norm(x_LBD + mixed, dim=0)
    else:
        qkv, out = w[prefix + "attention.qkv"], w[prefix + "attention.out"]
        x_LBD = rms_norm(x_LBD + attention(x_LBD, qkv, out, arch.heads, arch.rope), dim=-1)
    mixed = network.swiglu_channels(x_LBD, w[prefix + "channel_mlp.gate_up"], w[prefix + "channel_mlp.down"])
    return rms_norm(x_LBD + mixed, dim=-1)


def stack(x_LBD: Tensor, w: Weights, arch: Architecture) -> Tensor:
    """The block stack."""
    for i in range(arch.layers):
        x_LBD = block(x_LBD, w, f"blocks.{i}.", arch)
    return x_LBD


class Rematerialised(torch.autograd.Function):
    """Calls `function(*tensors)` and keeps only the tensors: backward computes it again, behind a barrier that stops
    the compiler from merging the second computation with the first."""

    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().clone() for tensor in ctx.saved_tensors]
        grad = grad.clone()
        if grad.device.type == "xla":
            from torch_xla.core.xla_model import optimization_barrier_

            optimization_barrier_([*inputs, grad])
        with torch.enable_grad():
            leaves = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in inputs]
            output = ctx.function(*leaves)
        return None, *torch.autograd.grad(output, leaves, grad)


def application(x_LBD: Tensor, w: Weights, arch: Architecture, remat: bool) -> Tensor:
    """The stack, with or without keeping its inner activations for backward."""
    if not (remat and torch.is_grad_enabled()):
        return stack(x_LBD, w, arch)
    names = [name for name in w if name.startswith("blocks.")]

    def again(x: Tensor, *tensors: Tensor) -> Tensor:
        return stack(x, dict(zip(names, tensors, strict=True)), arch)

    return Rematerialised.apply(again, x_LBD, *(w[name] for name in names))


def recursion_round(
    z_H: Tensor, z_L: Tensor, x: Tensor, w: Weights, arch: Architecture, l_cycles: int, remat: bool
) -> tuple[Tensor, Tensor]:
    """n updates of the latent z_L, then one of the answer z_H; all [L, B, D]."""
    inject = z_H + x
    for _ in range(l_cycles):
        z_L = application(z_L + inject, w, arch, remat)
    return application(z_H + z_L, w, arch, remat), z_L


def kept_bytes(w: Weights, arch: Architecture, length: int, rows: int, l_cycles: int) -> float:
    """Bytes that backward keeps on one device without rematerialisation, for `rows` rows of `length` tokens.

    Inner activations of each block application of the last round; within 15 % of what libtpu's compiler reports.
    """
    width, inner = w["blocks.0.channel_mlp.down"].shape
    values = length * (3 * inner + 6 * width)
    if "blocks.0.token_mlp.down" in w:
        values += 3 * w["blocks.0.token_mlp.down"].shape[1] * width
    else:
        values += length * (4 * width + 2 * arch.heads * length)
    return float(arch.dtype.itemsize * rows * (l_cycles + 1) * arch.layers * values)


class XlaNetwork:
    """As `trm.model.plain.PlainNetwork`.

    `remat`: compute the block stack again in backward instead of keeping its inner activations. None: as
    $TRM_XLA_REMAT says (0, 1 or auto, the default: when they would not fit into a chip's memory).
    """

    def __init__(
        self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture, remat: bool | None = None
    ):
        self._arch, self._params, self._grads, self.remat = arch, params, grads, remat
        self._leaf = params if params.dtype == grads.dtype else torch.empty_like(grads)
        self._weights = {}
        for name, view in layout.views(self._leaf).items():
            self._weights[name] = view.detach().requires_grad_()
            self._weights[name].grad = layout.views(grads)[name]

    def prepare(self) -> None:
        """Take the weights as they are now and zero the gradients."""
        if self._leaf is not self._params:
            self._leaf.copy_(self._params)
        self._grads.zero_()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `network.supervision_step`."""
        w, arch = self._weights, self._arch
        if self.remat is None:
            self.remat = self._choose_remat(z_H, l_cycles)
        x = network.embed(inputs, puzzle, w, arch)
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = recursion_round(z_H, z_L, x, w, arch, l_cycles, False)
        z_H, z_L = recursion_round(z_H, z_L, x, w, arch, l_cycles, self.remat)
        return (z_H, z_L, *network.heads(z_H, w, arch))

    def _choose_remat(self, z_H: Tensor, l_cycles: int) -> bool:
        chosen = os.environ.get(REMAT_VARIABLE, "auto")
        if chosen not in ("0", "1", "auto"):
            raise UserError(f"{REMAT_VARIABLE}={chosen}: it must be 0, 1 or auto")
        if chosen != "auto":
            return chosen == "1"
        devices = 1
        if z_H.device.type == "xla":
            import torch_xla.runtime

            devices = torch_xla.runtime.global_runtime_device_count()
        length, rows = z_H.shape[0], z_H.shape[1] // devices
        need = kept_bytes(self._weights, self._arch, length, rows, l_cycles) + 28.0 * self._params.numel()
        return need > HBM_SHARE * HBM_BYTES
