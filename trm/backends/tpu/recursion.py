"""All rounds of a supervision step with the Pallas kernels, and their hand-written backward.

The residual stream is [N, D] bfloat16, N = B * L, puzzle-major, with tokens padded to a multiple of 8. Between
`Mesh.to_local` and `Mesh.to_global` every tensor is one device's shard. Weight gradients are summed on each device in
float32; backward ends with their sum over the devices, which each sends in bfloat16.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.model import definition
from trm.model.definition import Architecture, Weights
from trm.study.activations import LANES, Block, padded_length

SENT = torch.bfloat16
"""In what devices send weight gradients: half the bytes of float32, with a rounding far below that of the products."""


PRODUCT_ROWS = 2496
"""Rows up to which the kernel of weight gradients holds an operand in VMEM: 24 puzzles of 104 tokens."""


def block_of(w: Weights, arch: Architecture, length: int) -> Block:
    """Sizes of the model's blocks on `length` tokens."""
    width, inner = w["blocks.0.channel_mlp.down"].shape
    token_down = w.get("blocks.0.token_mlp.down")
    return Block(length, width, inner, None if token_down is None else token_down.shape[1], arch.heads)


def usable(w: Weights, arch: Architecture, length: int, rows: int) -> bool:
    """Whether the kernels support this model with `rows` puzzles per device."""
    return block_of(w, arch, length).has_kernels() and arch.dtype == torch.bfloat16 and rows % 2 == 0


def kernel_weights(w: Weights, arch: Architecture, length: int) -> list[list[Tensor]]:
    """Per block, the mixer's two weights and the channel SwiGLU's, float32: tokens padded and heads interleaved but
    otherwise as in the model: were their gradients transposed, XLA would transpose the optimiser's state every step."""
    missing = padded_length(length) - length
    blocks = []
    for i in range(arch.layers):
        prefix = f"blocks.{i}."
        if prefix + "token_mlp.down" in w:
            gate_up = F.pad(w[prefix + "token_mlp.gate_up"], (0, missing))
            mixer = [gate_up, F.pad(w[prefix + "token_mlp.down"], (0, 0, 0, missing))]
        else:
            q, k, v = w[prefix + "attention.qkv"].chunk(3)
            head = len(q) // arch.heads
            qkv = torch.cat((interleave_heads(q, head) * head**-0.5, interleave_heads(k, head), v))
            mixer = [qkv, w[prefix + "attention.out"]]
        blocks.append([*mixer, w[prefix + "channel_mlp.gate_up"], w[prefix + "channel_mlp.down"]])
    return blocks


def interleave_heads(weight: Tensor, head: int) -> Tensor:
    """Reorder the rows of a query or key weight [D, D]: within each group of heads, 128 channels wide, the first halves
    of all heads, then the second halves."""
    reordered: Tensor = weight.unflatten(0, (-1, LANES // head, 2, head // 2)).transpose(1, 2).flatten(0, 3)
    return reordered


def operands(weights: Sequence[Tensor]) -> list[Tensor]:
    """One block's `kernel_weights` with halved gates, oriented as the kernels take them."""
    mix_in, mix_out, gate_up, down = with_halved_gates(weights)
    mixer = [mix_in, mix_out] if is_token(weights) else [mix_in.t(), mix_out.t()]
    return [*mixer, gate_up.t(), down.t()]


def is_token(weights: Sequence[Tensor]) -> bool:
    """Whether a block's mixer is a SwiGLU, by its weights: two inner ones in one, not queries, keys and values."""
    return len(weights[0]) == 2 * weights[1].shape[1]


def with_halved_gates(block: Sequence[Tensor]) -> list[Tensor]:
    """One block's `kernel_weights` with halved gates; or the gradients of these, given those of halved gates."""

    def halved(tensor: Tensor) -> Tensor:
        row = torch.arange(len(tensor), device=tensor.device)
        half = torch.where(row < len(tensor) // 2, 0.5, 1.0)[:, None]
        return tensor * half.to(tensor.dtype)  # one pass, without parts to join

    mix_in, mix_out, gate_up, down = block
    return [halved(mix_in) if is_token(block) else mix_in, mix_out, halved(gate_up), down]


def rotary_tables(length: int, head: int, device: torch.device) -> list[Tensor]:
    """Cosine and sine [L, 128] float32 in the order of `interleave_heads`; the first halves' sine is negated."""
    cos, sin = (table[:, 0, 0, : head // 2] for table in definition.rope_tables(length, head, device))
    sin = torch.stack((-sin, sin), 1)[:, :, None].expand(-1, -1, LANES // head, -1).flatten(1)
    return [cos.repeat(1, LANES // (head // 2)), sin]


class Kernels:
    """Runs kernels on one device's tensors: on XLA as part of the program, elsewhere interpreted (for tests)."""

    def __init__(self, puzzles: int, length: int, width: int, arch: Architecture, tables: list[Tensor]):
        self.puzzles, self.length, self.width, self.arch, self.tables = puzzles, length, width, arch, tables

    def run(
        self,
        kind: str,
        streams: Sequence[Tensor],
        weights: list[Tensor],
        keep: bool = False,
        backward: bool = False,
    ) -> list[Tensor]:
        """Results of one kernel on streams [N, D]: of backward its three, otherwise one, or several to be added."""
        from trm.backends.tpu import calls

        rope = kind == "attention" and self.arch.rope
        inner = {
            "token": weights[0].shape[0] // 2,
            "channel": weights[0].shape[1] // 2,
            "attention": self.width // self.arch.heads,
        }[kind]
        sizes = self.puzzles, self.length, self.width, inner
        added = 0 if backward else len(streams) - 1
        kernel = calls.Kernel(kind, backward, keep, added, *sizes, rope)
        return self._call(kernel, [*streams, *weights, *(self.tables if rope else [])])

    def gradient(self, left: Tensor, right: Tensor, total: Tensor | None, dtype: torch.dtype) -> Tensor:
        """left^T right of activations [N, P] and [N, Q], plus `total`, float32 [P, Q]. On a TPU the kernel takes three
        quarters of XLA's time for few rows, and as long as it for many."""
        if len(left) > PRODUCT_ROWS:
            found = torch.matmul(left.float().t(), right.float())
            return (found if total is None else total + found).to(dtype)
        from trm.backends.tpu import calls

        name = str(dtype).removeprefix("torch.")
        product = calls.Product(len(left), left.shape[1], right.shape[1], total is not None, name)
        return self._call(product, [left, right, *([] if total is None else [total])])[0]

    def _call(self, kernel: Any, tensors: list[Tensor]) -> list[Tensor]:
        from trm.backends.tpu import calls

        names = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
        if tensors[0].device.type == "xla":
            import torch_xla

            arguments = tuple(
                (tuple(tensor.shape), name) for tensor, name in zip(tensors, names, strict=True)
            )
            shapes = calls.output_shapes(kernel)
            results: list[Tensor] = torch_xla._XLAC._xla_tpu_custom_call(
                tensors,
                calls.payload(kernel, arguments),
                [list(shape) for shape, _ in shapes],
                [getattr(torch, dtype) for _, dtype in shapes],
            )
            return results
        import jax.numpy as jnp

        pairs = zip(tensors, names, strict=True)
        arrays = [jnp.asarray(tensor.float().numpy(), dtype=getattr(jnp, name)) for tensor, name in pairs]
        return [
            torch.tensor(array.astype(jnp.float32).tolist()).to(getattr(torch, array.dtype.name))
            for array in calls.jitted(kernel, interpret=True)(*arrays)
        ]


def marked(tensor: Tensor, mesh: Any, spec: tuple[str | None, ...]) -> Tensor:
    """The tensor with its dimensions sharded over the mesh by `spec` (None: replicated).

    Only the result of an operation is marked as part of the program: torch_xla would copy a tensor that has data to the
    host and back.
    """
    import torch_xla.distributed.spmd as spmd

    result = tensor & True if tensor.dtype == torch.bool else tensor * 1  # adding 0 would change -0
    sharded: Tensor = spmd.mark_sharding(result, mesh, spec).global_tensor
    return sharded


class Mesh(NamedTuple):
    """The devices that run the program; `spmd` is None for a single device."""

    devices: int
    spmd: Any = None

    def to_local(self, tensor: Tensor, sharded: bool) -> Tensor:
        """This device's part of a tensor that is sharded over its first dimension or replicated."""
        if self.spmd is None:
            return tensor
        import torch_xla.distributed.spmd as spmd

        spec = ("data" if sharded else None, *[None] * (tensor.dim() - 1))
        part: Tensor = spmd.enable_manual_sharding(tensor.clone(), spec, mesh=self.spmd).global_tensor
        return part

    def shard(self, tensor: Tensor, dim: int | None) -> Tensor:
        """The tensor with dimension `dim` sharded over the devices (None: replicated), for XLA's partitioner."""
        if self.spmd is None:
            return tensor
        return marked(
            tensor, self.spmd, tuple("data" if axis == dim else None for axis in range(tensor.dim()))
        )

    def to_global(self, tensor: Tensor) -> Tensor:
        """The devices' parts as one tensor, sharded over the first dimension."""
        if self.spmd is None:
            return tensor
        import torch_xla.distributed.spmd as spmd

        spec = ("data", *[None] * (tensor.dim() - 1))
        full = torch.Size((tensor.shape[0] * self.devices, *tensor.shape[1:]))
        joined: Tensor = spmd.disable_manual_sharding(tensor, spec, full, mesh=self.spmd).global_tensor
        return joined


class Saved(NamedTuple):
    """What backward needs of one block application."""

    streams: Sequence[Tensor]
    """The input: one stream, or several to be added."""
    kept: Sequence[Tensor] | None
    """Activations from the forward kernels; None: backward recomputes them."""


class Rounds:
    """Recursion rounds on one device.

    `weights`: from `operands`, in bfloat16. `sent`: in what the devices send weight gradients. `keep`: number of the
    last round's block applications that keep their activations.
    """

    def __init__(self, kernels: Kernels, weights: list[list[Tensor]], sent: torch.dtype, keep: int = 0):
        self._kernels, self._weights, self._sent, self._keep = kernels, weights, sent, keep
        self._kind = "token" if is_token(weights[0]) else "attention"
        self.sums: list[list[Tensor]] = [[] for _ in weights]
        """Accumulated weight gradients per block; empty before the first backward."""

    @classmethod
    def build(
        cls, x: Tensor, flat: Sequence[Tensor], arch: Architecture, mesh: Mesh, length: int, keep: int = 0
    ) -> Self:
        """From the global input and the flat list of `kernel_weights`."""
        tables = []
        if arch.rope:
            head = x.shape[1] // arch.heads
            positions = padded_length(length)
            tables = [mesh.to_local(t, False) for t in rotary_tables(positions, head, x.device)]
        weights = [weight.to(arch.dtype) for weight in flat]
        blocks = [operands(weights[i : i + 4]) for i in range(0, len(weights), 4)]
        rows = x.shape[0] // padded_length(length) // mesh.devices
        kernels = Kernels(rows, length, x.shape[1], arch, tables)
        local = [[mesh.to_local(part, False) for part in block] for block in blocks]
        return cls(kernels, local, SENT if mesh.devices > 1 else torch.float32, keep)

    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Saved] | None = None
    ) -> tuple[Tensor, Tensor]:
        """`l_cycles` updates of z_L, then one of z_H; appends what backward needs to `saved`."""
        for _ in range(l_cycles):
            z_L = self._stack((z_L, z_H, x), saved)
        return self._stack((z_H, z_L), saved), z_L

    def backward(self, grad: Tensor, saved: list[Saved]) -> Tensor:
        """Gradient of x, given that of z_H; accumulates weight gradients in `sums`."""
        grad = self._stack_backward(grad, saved)  # through the update of z_H, which does not read x
        grad = self._stack_backward(grad, saved)
        total = grad.float()
        while saved:
            grad = self._stack_backward(grad, saved)
            total = total + grad
        return total.to(grad.dtype)

    def gradients(self) -> list[Tensor]:
        """This device's gradients of `kernel_weights`, but with respect to halved gates."""
        gradients = []
        for gate_up, down, *mixer in self.sums:
            if self._kind == "token":
                mix_in, mix_out = (part.sum(0) for part in mixer)
                mixer = [mix_in, mix_out.t()]
            gradients += [*mixer, gate_up, down]
        return gradients

    def _stack(self, streams: Sequence[Tensor], saved: list[Saved] | None) -> Tensor:
        """Apply the blocks to the sum of the streams."""
        for weights in self._weights:
            keep = saved is not None and len(saved) < self._keep
            out, kept = self._block(streams, weights, keep)
            if saved is not None:
                saved.append(Saved(streams, kept if keep else None))
            streams = (out,)
        return out

    def _block(
        self, streams: Sequence[Tensor], weights: list[Tensor], keep: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Output of one block, and with `keep` the activations for backward."""
        between, *mixed = self._kernels.run(self._kind, streams, weights[:2], keep)
        out, *kept = self._kernels.run("channel", [between], weights[2:], keep)
        return out, (*mixed, between, *kept)

    def _stack_backward(self, grad: Tensor, saved: list[Saved]) -> Tensor:
        for weights, sums in zip(self._weights[::-1], self.sums[::-1]):
            streams, kept = saved.pop()
            if kept is None:
                grad, *streams = barrier(grad, *streams)
                _, kept = self._block(streams, weights, keep=True)
            # of the mixer (with its input, if that was a sum of streams), then of the channels
            mixer_sum, *inner, between, channel_sum, hidden, slopes = kept
            x = inner.pop() if len(streams) > 1 else streams[0]
            run = partial(self._kernels.run, backward=True)
            grad, gt, dhu = run("channel", [grad, channel_sum, slopes], weights[2:])
            old: list[Any] = sums or [None] * 4
            dtype = torch.float32 if len(saved) >= len(self.sums) else self._sent  # of a weight's last use
            add = partial(self._kernels.gradient, dtype=dtype)
            sums[:2] = add(dhu, between, old[0]), add(gt, hidden, old[1])
            if self._kind == "token":
                grad, *new = run("token", [grad, mixer_sum, x], weights[:2])
                sums[2:] = [part if total is None else total + part for total, part in zip(old[2:], new)]
            else:
                attended, qkv = inner
                grad, gt, dqkv = run("attention", [grad, mixer_sum, qkv], weights[:2])
                sums[2:] = add(dqkv, x, old[2]), add(gt, attended, old[3])
        return grad


def barrier(*tensors: Tensor) -> list[Tensor]:
    """Copies behind an optimization barrier: the compiler cannot compute what depends on them ahead of time."""
    copies = [tensor.clone() for tensor in tensors]
    if copies[0].device.type == "xla":
        from torch_xla.core.xla_model import optimization_barrier_

        optimization_barrier_(copies)
    return copies


class Recursion(torch.autograd.Function):
    """All rounds, the last one differentiable in x and the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        arch: Architecture,
        mesh: Mesh,
        length: int,
        cycles: tuple[int, int],
        keep: int,
        z_H: Tensor,
        z_L: Tensor,
        x: Tensor,
        *flat: Tensor,
    ) -> tuple[Tensor, Tensor]:
        h_cycles, l_cycles = cycles
        rounds = Rounds.build(x, flat, arch, mesh, length, keep)
        z_H, z_L, x = (mesh.to_local(tensor, True) for tensor in (z_H, z_L, x))
        for _ in range(h_cycles - 1):
            z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles)
        ctx.rounds, ctx.mesh, ctx.saved = rounds, mesh, []
        z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles, ctx.saved)
        z_H, z_L = mesh.to_global(z_H), mesh.to_global(z_L)
        ctx.mark_non_differentiable(z_L)
        return z_H, z_L

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor, grad_L: Tensor) -> tuple[Tensor | None, ...]:
        mesh, rounds = ctx.mesh, ctx.rounds
        grad_x = mesh.to_global(rounds.backward(mesh.to_local(grad_H, True), ctx.saved))
        sums = rounds.gradients()
        blocks = (sums[i : i + 4] for i in range(0, len(sums), 4))
        grads = [with_halved_gates([summed(tensor, mesh) for tensor in block]) for block in blocks]
        return None, None, None, None, None, None, None, grad_x, *chain(*grads)


def summed(tensor: Tensor, mesh: Mesh) -> Tensor:
    """The sum over the devices of one device's gradient."""
    if mesh.devices == 1:
        return tensor
    return mesh.to_global(tensor.to(SENT)[None]).sum(0).float()


def recursion(
    z_H: Tensor,
    z_L: Tensor,
    x: Tensor,
    w: Weights,
    arch: Architecture,
    mesh: Mesh,
    h_cycles: int,
    l_cycles: int,
    keep: int = 0,
) -> tuple[Tensor, Tensor]:
    """h_cycles rounds on z_H, z_L, x [L, B, D], the last one with gradient if autograd is enabled.

    `keep`: number of the last round's block applications that keep their activations; backward recomputes the others.
    """
    length, count, width = x.shape
    blocks, padded = kernel_weights(w, arch, length), padded_length(length)

    def to_stream(tensor: Tensor) -> Tensor:
        return F.pad(tensor.transpose(0, 1), (0, 0, 0, padded - length)).reshape(-1, width)

    def from_stream(tensor: Tensor) -> Tensor:
        return tensor.view(count, padded, width)[:, :length].transpose(0, 1)

    flat = [weight for block in blocks for weight in block]
    streams = [to_stream(tensor) for tensor in (z_H, z_L, x)]
    if not torch.is_grad_enabled():
        rounds = Rounds.build(streams[2], flat, arch, mesh, length)
        z_H, z_L, x = (mesh.to_local(tensor, True) for tensor in streams)
        for _ in range(h_cycles):
            z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles)
        return from_stream(mesh.to_global(z_H)), from_stream(mesh.to_global(z_L))
    z_H, z_L = Recursion.apply(arch, mesh, length, (h_cycles, l_cycles), keep, *streams, *flat)
    return from_stream(z_H), from_stream(z_L)
