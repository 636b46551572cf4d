"""The network for XLA: on a TPU with Pallas kernels if they support the model, otherwise with torch operations arranged
for the TPU compiler. Computes `trm.model.definition`.

Shapes: L tokens, B rows, D width, H heads, K head width, I inner width.
"""

import os
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.backends.base import switch
from trm.backends.tpu import recursion
from trm.model import definition
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Buffer, Layout
from trm.model.plain import PlainRounds
from trm.study.activations import WORKING_APPLICATIONS
from trm.study.slices import hbm_gib

KERNELS_VARIABLE = "TRM_XLA_KERNELS"
REMAT_VARIABLE = "TRM_XLA_REMAT"
HBM_SHARE = 0.9  # of a chip's memory that estimates may fill


def contract(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """`torch.einsum` of two tensors.

    float32 uses `torch.matmul`, since torch_xla's einsum ignores the matmul precision: a TPU would round the operands
    to bfloat16.
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

    def as_matrix(tensor: Tensor, names: str, *groups: list[str]) -> Tensor:
        order = [*shared, *(name for group in groups for name in group)]
        shape = [size[name] for name in shared] + [prod(size[name] for name in group) for group in groups]
        return tensor.permute([names.index(name) for name in order]).reshape(shape)

    product = torch.matmul(as_matrix(a, first, left, summed), as_matrix(b, second, summed, right))
    order = [*shared, *left, *right]
    return product.reshape([size[name] for name in order]).permute([order.index(name) for name in result])


def attention(x_LBD: Tensor, qkv: Tensor, out: Tensor, heads: int, rope: bool) -> Tensor:
    """Bidirectional attention in the forward dtype."""
    dtype = x_LBD.dtype
    # split q, k and v before the heads: the other order makes the partitioner gather all rows on every chip
    q, k, v = (t.unflatten(-1, (heads, -1)) for t in F.linear(x_LBD, qkv.to(dtype)).chunk(3, dim=-1))
    if rope:
        cos, sin = definition.rope_tables(x_LBD.shape[0], q.shape[-1], x_LBD.device)
        q, k = definition.rotate(q, cos, sin), definition.rotate(k, cos, sin)
    scores = contract("qbhk,sbhk->bhqs", q * q.shape[-1] ** -0.5, k)
    y_LBHK = contract("bhqs,sbhk->qbhk", scores.softmax(-1), v)
    # contract over split heads: with merged heads the weight gradient would gather all rows on every chip
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
            x_LBD = definition.rms_norm(x_LBD + mixed, dim=0)
        else:
            qkv, out = w[prefix + "attention.qkv"], w[prefix + "attention.out"]
            x_LBD = definition.rms_norm(x_LBD + attention(x_LBD, qkv, out, arch.heads, arch.rope), dim=-1)
        mixed = definition.swiglu_channels(
            x_LBD, w[prefix + "channel_mlp.gate_up"], w[prefix + "channel_mlp.down"]
        )
        x_LBD = definition.rms_norm(x_LBD + mixed, dim=-1)
    return x_LBD


class Rematerialize(torch.autograd.Function):
    """Activation checkpointing of `function(*tensors)`: backward recomputes it behind an optimization barrier, which
    stops the compiler from merging the two computations."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, grad = recursion.barrier(*(tensor.detach() for tensor in ctx.saved_tensors), grad)
        with torch.enable_grad():
            leaves = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in inputs]
            output = ctx.function(*leaves)
        return None, *torch.autograd.grad(output, leaves, grad)


def apply_stack(x_LBD: Tensor, w: Weights, arch: Architecture, remat: bool) -> Tensor:
    """The stack; with `remat`, backward recomputes its inner activations."""
    if not (remat and torch.is_grad_enabled()):
        return stack(x_LBD, w, arch)
    names = [name for name in w if name.startswith("blocks.")]

    def function(x: Tensor, *tensors: Tensor) -> Tensor:
        return stack(x, dict(zip(names, tensors, strict=True)), arch)

    out: Tensor = Rematerialize.apply(function, x_LBD, *(w[name] for name in names))
    return out


def recursion_round(
    z_H: Tensor, z_L: Tensor, x: Tensor, apply: Callable[[Tensor], Tensor], l_cycles: int
) -> tuple[Tensor, Tensor]:
    """`l_cycles` updates of z_L, then one of z_H, with `apply` as the stack of blocks."""
    inject = z_H + x
    for _ in range(l_cycles):
        z_L = apply(z_L + inject)
    return apply(z_H + z_L), z_L


class XlaNetwork:
    """Same interface as `trm.model.plain.PlainNetwork`.

    `kernels`: use the kernels for models that they support. None: according to $TRM_XLA_KERNELS (0, or auto, the
    default: on a TPU). `remat`: recompute blocks in backward instead of keeping their activations. None: according to
    $TRM_XLA_REMAT (0, 1, or auto, the default: if the activations do not fit into a chip's memory; with kernels, only
    for as many blocks as do not fit).
    """

    def __init__(self, layout: Layout, params: Buffer, grads: Buffer, arch: Architecture):
        self._layout, self._arch, self._params, self._grads = layout, arch, params, grads
        self.remat: bool | None = None
        self.kernels: bool | None = None
        self._keep: int | None = None
        self._weights: dict[str, Tensor] = {}

    def prepare(self) -> None:
        """Read the current weights and zero the gradients."""
        grads = self._layout.views(self._grads)
        for name, weight in self._layout.views(self._params).items():
            # the gradients of all uses are summed in float32, even for bfloat16 weights
            leaf = self._weights[name] = weight.detach().to(grads[name].dtype).requires_grad_()
            leaf.grad = grads[name].zero_()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w, arch = self._weights, self._arch
        mesh = mesh_of(z_H)
        length, rows = z_H.shape[0], z_H.shape[1] // mesh.devices
        if self.kernels is None:
            self.kernels = kernels_wanted()
        x = definition.embed(inputs, puzzle, w, arch, definition.one_hot_lookup)
        if self.kernels and recursion.usable(w, arch, length, rows):
            if self._keep is None:
                self._keep = self._choose_keep(w, length, rows, l_cycles)
            z_H, z_L = recursion.recursion(z_H, z_L, x, w, arch, mesh, h_cycles, l_cycles, self._keep)
            return (z_H, z_L, *definition.heads(z_H, w, arch))
        if self.remat is None:
            self.remat = self._choose_remat(w, length, rows, l_cycles)
        remat = self.remat
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = recursion_round(z_H, z_L, x, lambda z: stack(z, w, arch), l_cycles)
        z_H, z_L = recursion_round(z_H, z_L, x, lambda z: apply_stack(z, w, arch, remat), l_cycles)
        return (z_H, z_L, *definition.heads(z_H, w, arch))

    def _choose_remat(self, w: Weights, length: int, rows: int, l_cycles: int) -> bool:
        setting = switch(REMAT_VARIABLE)
        if setting != "auto":
            return setting == "1"
        each = recursion.block_of(w, self._arch, length).bytes(rows, self._arch.dtype.itemsize, xla=True)
        return (l_cycles + 1) * self._arch.layers * each > self._free_bytes()

    def _choose_keep(self, w: Weights, length: int, rows: int, l_cycles: int) -> int:
        """How many block applications keep their activations with kernels; sets `remat` if not all do."""
        count, setting = (l_cycles + 1) * self._arch.layers, switch(REMAT_VARIABLE)
        if self.remat is None and setting == "auto":
            each = recursion.block_of(w, self._arch, length).kernel_bytes(rows)
            keep = min(count, max(0, int(self._free_bytes() / each) - WORKING_APPLICATIONS))
        else:
            keep = 0 if self.remat or (self.remat is None and setting == "1") else count
        self.remat = keep < count
        return keep

    def _free_bytes(self) -> float:
        """Memory of a chip that is left beside weights, gradients and optimizer state."""
        return HBM_SHARE * hbm_gib() * 2**30 - 28.0 * self._layout.size


class XlaRounds(PlainRounds):
    """Rounds without gradient; rows are sharded over the devices if their number divides.

    `kernels`: as in `XlaNetwork`. Each round runs as soon as it is traced, so that an evaluation is one small program
    run many times, while the host traces the next round. Compiling all its steps as one program would take minutes.
    """

    def __init__(self, weights: Weights, arch: Architecture):
        super().__init__(weights, arch)
        self.mesh = mesh_of(weights["embed.weight"])
        self.kernels = kernels_wanted()
        self.multiple = 2 * self.mesh.devices
        """Rows are sharded in multiples of this, so that both cores of each chip get equally many."""

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        states = self._round(z_H, z_L, x, l_cycles)
        if x.device.type == "xla":
            import torch_xla

            torch_xla.sync()
        return states

    def _round(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        w, arch, mesh = self._weights, self._arch, self.mesh
        length, rows = x.shape[:2]
        if rows % self.multiple == 0:
            if self.kernels and recursion.usable(w, arch, length, rows // mesh.devices):
                return recursion.recursion(z_H, z_L, x, w, arch, mesh, 1, l_cycles)
            z_H, z_L, x = (mesh.shard(tensor, 1) for tensor in (z_H, z_L, x))
        return recursion_round(z_H, z_L, x, lambda z: stack(z, w, arch), l_cycles)


def kernels_wanted() -> bool:
    """Whether to use the kernels: on a TPU, unless $TRM_XLA_KERNELS is 0."""
    return switch(KERNELS_VARIABLE) != "0" and os.environ.get("PJRT_DEVICE") == "TPU"


def mesh_of(tensor: Tensor) -> recursion.Mesh:
    """The devices that run a program on this tensor."""
    if tensor.device.type != "xla":
        return recursion.Mesh(1)
    import torch_xla.distributed.spmd as spmd
    import torch_xla.runtime

    devices = torch_xla.runtime.global_runtime_device_count()
    return recursion.Mesh(devices, spmd.get_global_mesh() if devices > 1 else None)
