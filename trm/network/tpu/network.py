"""The network for XLA: on a TPU by the kernels of `xla_kernels` where they fit the model, else as plain operations
in the order that the TPU compiler likes best. Same function as `trm.network.definition`.

Shapes as there: L tokens, B rows, D width, H heads, K head width, I inner width.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.devices.base import switch
from trm.network import definition as network
from trm.network.definition import Architecture, Weights
from trm.network.parameters import Layout
from trm.network.tpu import recursion as xla_recursion
from trm.study.slices import hbm_gib

KERNELS_VARIABLE = "TRM_XLA_KERNELS"
REMAT_VARIABLE = "TRM_XLA_REMAT"
HBM_SHARE = 0.9  # of a chip's memory that may be filled by estimate
WORKING_APPLICATIONS = 2
"""The kernels' other tensors take less memory than what two block applications keep."""


def contract(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """`torch.einsum` of two tensors.

    Float32 goes through `torch.matmul`: torch_xla's own einsum ignores the precision set for products, so that a TPU
    would round the operands to bfloat16.
    """
    if a.dtype != torch.float32:
        return torch.einsum(equation, a, b)
    operands, result = equation.split("->")
    first, second = operands.split(",")
    size = dict(zip(first + second, (*a.shape, *b.shape), strict=True))
    shared = [name for name in result if name in first and name in second]
    left, right = (
        [name for name in names if name in result and name not in shared] for names in (first, second)
    )
    summed = [name for name in first if name not in result]

    def arranged(tensor: Tensor, names: str, *groups: list[str]) -> Tensor:
        order = [*shared, *(name for group in groups for name in group)]
        shape = [size[name] for name in shared] + [prod(size[name] for name in group) for group in groups]
        return tensor.permute([names.index(name) for name in order]).reshape(shape)

    found = torch.matmul(arranged(a, first, left, summed), arranged(b, second, summed, right))
    order = [*shared, *left, *right]
    return found.reshape([size[name] for name in order]).permute([order.index(name) for name in result])


def attention(x_LBD: Tensor, qkv: Tensor, out: Tensor, heads: int, rope: bool) -> Tensor:
    """Bidirectional attention, all in the forward dtype."""
    dtype = x_LBD.dtype
    # cut before the heads are split off: the other way round the partitioner gathers all rows on every chip
    q, k, v = (t.unflatten(-1, (heads, -1)) for t in F.linear(x_LBD, qkv.to(dtype)).chunk(3, dim=-1))
    if rope:
        cos, sin = network.rope_tables(x_LBD.shape[0], q.shape[-1], x_LBD.device)
        q, k = network.rotate(q, cos, sin), network.rotate(k, cos, sin)
    scores = contract("qbhk,sbhk->bhqs", q * q.shape[-1] ** -0.5, k)
    y_LBHK = contract("bhqs,sbhk->qbhk", scores.softmax(-1), v)
    # the heads stay apart here too: joined, the weight's gradient would gather all rows on every chip
    return contract("qbhk,dhk->qbd", y_LBHK, out.to(dtype).unflatten(1, (heads, -1)))


def swiglu_tokens(x_LBD: Tensor, gate_up_IL: Tensor, down_LI: Tensor) -> Tensor:
    """SwiGLU over the token axis."""
    gate, up = contract("il,lbd->ibd", gate_up_IL.to(x_LBD.dtype), x_LBD).chunk(2)
    return contract("li,ibd->lbd", down_LI.to(x_LBD.dtype), F.silu(gate) * up)


def stack(x_LBD: Tensor, w: Weights, arch: Architecture) -> Tensor:
    """The stack of post-norm blocks."""
    for i in range(arch.layers):
        prefix = f"blocks.{i}."
        if prefix + "token_mlp.down" in w:
            mixed = swiglu_tokens(x_LBD, w[prefix + "token_mlp.gate_up"], w[prefix + "token_mlp.down"])
            x_LBD = network.rms_norm(x_LBD + mixed, dim=0)
        else:
            qkv, out = w[prefix + "attention.qkv"], w[prefix + "attention.out"]
            x_LBD = network.rms_norm(x_LBD + attention(x_LBD, qkv, out, arch.heads, arch.rope), dim=-1)
        mixed = network.swiglu_channels(
            x_LBD, w[prefix + "channel_mlp.gate_up"], w[prefix + "channel_mlp.down"]
        )
        x_LBD = network.rms_norm(x_LBD + mixed, dim=-1)
    return x_LBD


def looked_up(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of the table by a product with one-hot rows: a lookup's backward is a scatter, for which the partitioner
    would gather all rows on every chip."""
    symbols = torch.arange(table.shape[0], device=ids.device, dtype=torch.int32)
    return torch.matmul((ids[..., None] == symbols).to(table.dtype), table)


class Rematerialised(torch.autograd.Function):
    """Calls `function(*tensors)` and keeps only the tensors: backward computes it again, behind a barrier
    that stops the compiler from merging the second computation with the first."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
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

    mixed: Tensor = Rematerialised.apply(again, x_LBD, *(w[name] for name in names))
    return mixed


def recursion_round(
    z_H: Tensor, z_L: Tensor, x: Tensor, apply: Callable[[Tensor], Tensor], l_cycles: int
) -> tuple[Tensor, Tensor]:
    """n updates of the latent z_L, then one of the answer z_H; all [L, B, D]."""
    inject = z_H + x
    for _ in range(l_cycles):
        z_L = apply(z_L + inject)
    return apply(z_H + z_L), z_L


def kept_bytes(w: Weights, arch: Architecture, length: int, rows: int, l_cycles: int) -> float:
    """Bytes that backward keeps on one device without rematerialisation, for `rows` rows of `length` tokens.

    Inner activations of each block application of the last round; within 15 % of what libtpu's compiler
    reports.
    """
    width, inner = w["blocks.0.channel_mlp.down"].shape
    if "blocks.0.token_mlp.down" in w:
        values = length * (3 * inner + 6 * width) + 3 * w["blocks.0.token_mlp.down"].shape[1] * width
    else:
        values = length * (3 * inner + 8 * width + 2 * arch.heads * length)
    return float(arch.dtype.itemsize * rows * (l_cycles + 1) * arch.layers * values)


class Unpacked(torch.autograd.Function):
    """The parameters in the flat buffer. Backward joins their gradients at once: on XLA a gradient that is added into
    a view costs a pass over the whole buffer."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, layout: Layout) -> tuple[Tensor, ...]:
        ctx.layout = layout
        return tuple(view.clone() for view in layout.views(flat).values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        starts = [*ctx.layout.offsets.values(), ctx.layout.size]
        parts = []
        for grad, start, end in zip(grads, starts, starts[1:], strict=False):
            parts.append(F.pad(grad.reshape(-1), (0, end - start - grad.numel())))
        return torch.cat(parts), None


class XlaNetwork:
    """As `trm.network.eager.plain.PlainNetwork`.

    `kernels`: use the kernels where they fit. None: as $TRM_XLA_KERNELS says (0, or auto, the default: on a TPU).
    `remat`: compute blocks again in backward instead of keeping their inner activations. None: as $TRM_XLA_REMAT says
    (0, 1 or auto, the default: when they would not fit into a chip's memory; with kernels, as many as do not fit).
    """

    def __init__(
        self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture, remat: bool | None = None
    ):
        self._layout, self._arch, self._params, self._grads = layout, arch, params, grads
        self.remat = remat
        self.kernels: bool | None = None
        self._keep: int | None = None
        self._flat = params

    def prepare(self) -> None:
        """Take the weights as they are now and zero the gradients."""
        self._grads.zero_()
        # gradients of all uses are summed in float32, even for bfloat16 weights
        self._flat = self._params.detach().to(self._grads.dtype).requires_grad_()
        self._flat.grad = self._grads

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `network.supervision_step`."""
        w, arch = dict(zip(self._layout.shapes, Unpacked.apply(self._flat, self._layout))), self._arch
        mesh = mesh_of(z_H)
        length, rows = z_H.shape[0], z_H.shape[1] // mesh.devices
        if self.kernels is None:
            self.kernels = kernels_wanted()
        x = network.embed(inputs, puzzle, w, arch, looked_up)
        if self.kernels and xla_recursion.usable(w, arch, length, rows):
            if self._keep is None:
                self._keep = self._choose_keep(w, length, rows, l_cycles)
            z_H, z_L = xla_recursion.recursion(z_H, z_L, x, w, arch, mesh, h_cycles, l_cycles, self._keep)
            return (z_H, z_L, *network.heads(z_H, w, arch))
        if self.remat is None:
            self.remat = self._choose_remat(w, length, rows, l_cycles)
        remat = self.remat
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = recursion_round(z_H, z_L, x, lambda z: application(z, w, arch, False), l_cycles)
        z_H, z_L = recursion_round(z_H, z_L, x, lambda z: application(z, w, arch, remat), l_cycles)
        return (z_H, z_L, *network.heads(z_H, w, arch))

    def _choose_remat(self, w: Weights, length: int, rows: int, l_cycles: int) -> bool:
        chosen = switch(REMAT_VARIABLE)
        if chosen != "auto":
            return chosen == "1"
        return kept_bytes(w, self._arch, length, rows, l_cycles) > self._free_bytes()

    def _choose_keep(self, w: Weights, length: int, rows: int, l_cycles: int) -> int:
        """How many block applications keep their activations with kernels; sets `remat`: not all do."""
        count, chosen = (l_cycles + 1) * self._arch.layers, switch(REMAT_VARIABLE)
        if self.remat is None and chosen == "auto":
            each = xla_recursion.kept_bytes(w, length, rows)
            keep = min(count, max(0, int(self._free_bytes() / each) - WORKING_APPLICATIONS))
        else:
            keep = 0 if self.remat or (self.remat is None and chosen == "1") else count
        self.remat = keep < count
        return keep

    def _free_bytes(self) -> float:
        """Bytes of a chip's memory beside the weights, their gradients and the optimizer's state."""
        return HBM_SHARE * hbm_gib() * 2**30 - 28.0 * self._params.numel()


class XlaRounds:
    """Rounds without gradient, their rows sharded over the devices where they divide.

    `kernels`: as `XlaNetwork`'s. `start`: each round is started as soon as it is traced, so that an evaluation is one
    small program run many times, and the host traces the next round meanwhile; all its steps as one program would
    take the compiler minutes.
    """

    def __init__(self, weights: Weights, arch: Architecture):
        self._weights, self._arch = weights, arch
        self.mesh = mesh_of(weights["embed.weight"])
        self.kernels, self.start = kernels_wanted(), True
        self.multiple = 2 * self.mesh.devices
        """Rows are sharded in multiples of this: each of a chip's two cores gets as many."""

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        """As `network.recursion_round`."""
        found = self._round(z_H, z_L, x, l_cycles)
        if self.start and x.device.type == "xla":
            import torch_xla

            torch_xla.sync()
        return found

    def whole(self, tensor: Tensor) -> Tensor:
        """The same, whole on every device: fetching a sharded tensor would compile a program each time."""
        return self.mesh.share(tensor, None)

    def _round(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        w, arch, mesh = self._weights, self._arch, self.mesh
        length, rows = x.shape[:2]
        if rows % self.multiple == 0:
            if self.kernels and xla_recursion.usable(w, arch, length, rows // mesh.devices):
                return xla_recursion.recursion(z_H, z_L, x, w, arch, mesh, 1, l_cycles)
            z_H, z_L, x = (mesh.share(tensor, 1) for tensor in (z_H, z_L, x))
        return recursion_round(z_H, z_L, x, lambda z: stack(z, w, arch), l_cycles)


def kernels_wanted() -> bool:
    """Whether to use the kernels: on a TPU, unless $TRM_XLA_KERNELS is 0."""
    return switch(KERNELS_VARIABLE) != "0" and os.environ.get("PJRT_DEVICE") == "TPU"


def mesh_of(tensor: Tensor) -> xla_recursion.Mesh:
    """The devices that a program with this tensor runs on."""
    if tensor.device.type != "xla":
        return xla_recursion.Mesh(1)
    import torch_xla.distributed.spmd as spmd
    import torch_xla.runtime

    devices = torch_xla.runtime.global_runtime_device_count()
    return xla_recursion.Mesh(devices, spmd.get_global_mesh() if devices > 1 else None)
