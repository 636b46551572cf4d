"""The whole recursion of a supervision step by the kernels of `xla_kernels`, with a hand-written backward.

The residual stream is [N, D] bfloat16, N = B * L: puzzle after puzzle, tokens padded to a multiple of 8. Kernels know
nothing of other devices: between `enter` and `leave` every tensor is one device's part, weights' gradients are summed
there in float32, and one flat sum over devices ends the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.devices.sharding import marked
from trm.network import definition as network
from trm.network.definition import Architecture, Weights
from trm.network.tpu.shapes import LANES, padded_length

MAX_WEIGHT = 512 * 1536
"""Values of a weight that a core's 16 MiB hold beside the tiles, twice."""


def usable(w: Weights, arch: Architecture, length: int, rows: int) -> bool:
    """Whether the kernels take this model with `rows` puzzles a device; otherwise XLA makes its own program."""
    width, inner = w["blocks.0.channel_mlp.down"].shape
    fits = width % LANES == 0 and inner % 256 == 0 and width * inner <= MAX_WEIGHT and length <= LANES
    if "blocks.0.token_mlp.down" in w:
        fits = fits and w["blocks.0.token_mlp.down"].shape[1] % 256 == 0
    head = width // arch.heads
    heads = "blocks.0.token_mlp.down" in w or (LANES % head == 0 and head >= 16)
    return arch.dtype == torch.bfloat16 and fits and heads and rows % 2 == 0


def kept_bytes(w: Weights, length: int, rows: int) -> int:
    """Bytes that one block application keeps on a device with `rows` puzzles: four streams, the channel SwiGLU's
    hidden values and their derivatives, and of attention its result, queries, keys and values."""
    width, inner = w["blocks.0.channel_mlp.down"].shape
    streams = 4 if "blocks.0.token_mlp.down" in w else 8
    return 2 * rows * padded_length(length) * (streams * width + 3 * inner)


def prepared(w: Weights, arch: Architecture, length: int) -> list[list[Tensor]]:
    """Per block: the mixer's weights, then the channel SwiGLU's, float32, as the kernels take them."""
    missing = padded_length(length) - length
    blocks = []
    for i in range(arch.layers):
        prefix = f"blocks.{i}."
        if prefix + "token_mlp.down" in w:
            gate, up = F.pad(w[prefix + "token_mlp.gate_up"], (0, missing)).chunk(2)
            mixer = [gate * 0.5, up, F.pad(w[prefix + "token_mlp.down"], (0, 0, 0, missing))]
        else:
            q, k, v = w[prefix + "attention.qkv"].t().chunk(3, dim=1)
            head = q.shape[1] // arch.heads
            q, k = (halves_first(weight, head) for weight in (q, k))
            mixer = [q * head**-0.5, k, v, w[prefix + "attention.out"].t()]
        gate, up = w[prefix + "channel_mlp.gate_up"].t().chunk(2, dim=1)
        blocks.append([*mixer, gate * 0.5, up, w[prefix + "channel_mlp.down"].t()])
    return blocks


def halves_first(weight: Tensor, head: int) -> Tensor:
    """Columns of queries' or keys' weights [D, D] in the kernels' order: in each group of heads, 128 channels wide,
    all heads' first halves, then all second halves."""
    found: Tensor = weight.unflatten(1, (-1, LANES // head, 2, head // 2)).transpose(2, 3).flatten(1)
    return found


def rotary_tables(length: int, head: int, device: torch.device) -> list[Tensor]:
    """Cosine, and sine (negative for the first halves), [L, 128] float32, in the order of `halves_first`."""
    cos, sin = (table[:, 0, 0, : head // 2] for table in network.rope_tables(length, head, device))
    sin = torch.stack((-sin, sin), 1)[:, :, None].expand(-1, -1, LANES // head, -1).flatten(1)
    return [cos.repeat(1, LANES // (head // 2)), sin]


class Calls:
    """Kernel calls on one device's tensors: on XLA as part of the program, elsewhere interpreted (for tests)."""

    def __init__(self, puzzles: int, length: int, width: int, arch: Architecture, tables: list[Tensor]):
        self.puzzles, self.length, self.width, self.arch, self.tables = puzzles, length, width, arch, tables

    def half(
        self, kind: str, streams: Sequence[Tensor], weights: list[Tensor], keep: bool = False
    ) -> list[Tensor]:
        """Run one half; streams [N, D], results as the kernel returns them."""
        from trm.network.tpu.calls import Half

        rope = kind == "attention" and self.arch.rope
        inner = {
            "token": weights[0].shape[0],
            "channel": weights[0].shape[1],
            "attention": self.width // self.arch.heads,
        }[kind]
        sizes = self.puzzles, self.length, self.width, inner
        half = Half(kind, len(streams) == 3, keep, len(streams) == 2, *sizes, rope)
        return run_kernel(half, [*streams, *weights, *(self.tables if rope else [])])


def run_kernel(half: Any, tensors: list[Tensor]) -> list[Tensor]:
    """One kernel call."""
    from trm.network.tpu import calls as xla_calls

    names = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
    if tensors[0].device.type == "xla":
        import torch_xla

        arguments = tuple((tuple(tensor.shape), names[tensor.dtype]) for tensor in tensors)
        results = xla_calls.outputs(half)
        made: list[Tensor] = torch_xla._XLAC._xla_tpu_custom_call(
            tensors,
            xla_calls.payload(half, arguments),
            [list(shape) for shape, _ in results],
            [getattr(torch, dtype) for _, dtype in results],
        )
        return made
    import jax.numpy as jnp

    arrays = [jnp.asarray(t.float().numpy(), dtype=getattr(jnp, names[t.dtype])) for t in tensors]
    found = xla_calls.function(half, interpret=True)(*arrays)
    return [
        torch.tensor(array.astype(jnp.float32).tolist()).to(getattr(torch, array.dtype.name))
        for array in found
    ]


class Mesh(NamedTuple):
    """The devices of the program; `spmd` is None where there is one."""

    devices: int
    spmd: Any = None

    def enter(self, tensor: Tensor, sharded: bool) -> Tensor:
        """This device's part of a tensor that is sharded over its first dimension, or replicated."""
        if self.spmd is None:
            return tensor
        import torch_xla.distributed.spmd as spmd

        spec = ("data" if sharded else None, *[None] * (tensor.dim() - 1))
        part: Tensor = spmd.enable_manual_sharding(tensor.clone(), spec, mesh=self.spmd).global_tensor
        return part

    def share(self, tensor: Tensor, dim: int | None) -> Tensor:
        """The tensor with dimension `dim` sharded over the devices, or whole on each, for XLA's partitioner."""
        if self.spmd is None:
            return tensor
        return marked(
            tensor, self.spmd, tuple("data" if axis == dim else None for axis in range(tensor.dim()))
        )

    def leave(self, tensor: Tensor) -> Tensor:
        """The devices' parts as one tensor again, sharded over the first dimension."""
        if self.spmd is None:
            return tensor
        import torch_xla.distributed.spmd as spmd

        spec = ("data", *[None] * (tensor.dim() - 1))
        full = torch.Size((tensor.shape[0] * self.devices, *tensor.shape[1:]))
        joined: Tensor = spmd.disable_manual_sharding(tensor, spec, full, mesh=self.spmd).global_tensor
        return joined


class Saved(NamedTuple):
    """One block application as backward needs it."""

    streams: Sequence[Tensor]
    """Its inputs: one stream, or two to be added."""
    kept: Sequence[Tensor] | None
    """What the forward kernels return for backward; None: backward runs them again."""


class Rounds:
    """Recursion rounds of one device.

    `weights`: per block as from `prepared`, bfloat16. `keep`: so many block applications of the differentiated round
    keep their activations.
    """

    def __init__(self, calls: Calls, weights: list[list[Tensor]], keep: int = 0):
        self._calls, self._weights, self._keep = calls, weights, keep
        self._kind = "token" if len(weights[0]) == 6 else "attention"
        self.sums: list[list[Tensor]] = [[] for _ in weights]
        """Sums of the weights' gradients by block; empty before the first backward."""

    @classmethod
    def of(
        cls, x: Tensor, flat: Sequence[Tensor], arch: Architecture, mesh: Mesh, length: int, keep: int = 0
    ) -> Rounds:
        """From the global input and float32 weights, inside."""
        count = len(flat) // arch.layers
        tables = []
        if arch.rope:
            head = x.shape[1] // arch.heads
            positions = padded_length(length)
            tables = [mesh.enter(t, False) for t in rotary_tables(positions, head, x.device)]
        weights = [mesh.enter(weight.to(arch.dtype), False) for weight in flat]
        rows = x.shape[0] // padded_length(length) // mesh.devices
        calls = Calls(rows, length, x.shape[1], arch, tables)
        return cls(calls, [weights[i : i + count] for i in range(0, len(weights), count)], keep)

    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Saved] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `network.recursion_round`; what backward needs is appended to `saved`."""
        inject = z_H + x
        for _ in range(l_cycles):
            z_L = self._stack((z_L, inject), saved)
        return self._stack((z_H, z_L), saved), z_L

    def backward(self, grad: Tensor, saved: list[Saved]) -> Tensor:
        """Gradient of x from that of z_H; adds the weights' gradients to `sums`."""
        grad = self._stack_backward(grad, saved)  # through the update of z_H, which does not read x
        grad = self._stack_backward(grad, saved)
        total = grad.float()
        while saved:
            grad = self._stack_backward(grad, saved)
            total = total + grad
        return total.to(grad.dtype)

    def gradients(self) -> list[Tensor]:
        """Sums of the weights' gradients, in the order and shapes of the weights; one device's."""
        found = []
        for sums in self.sums:
            channel, down, *mixer = sums
            if self._kind == "token":
                gate, up, back = (part.sum(0) for part in mixer)
                found += [gate, up, back.t()]
            else:
                found += [*mixer[0].chunk(3, dim=1), mixer[1]]
            found += [*channel.chunk(2, dim=1), down]
        return found

    def _stack(self, streams: Sequence[Tensor], saved: list[Saved] | None) -> Tensor:
        """The blocks on the sum of the streams."""
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
        """One block: its result, and what backward needs beside the streams."""
        between, *mixed = self._calls.half(self._kind, streams, weights[:-3], keep)
        out, *kept = self._calls.half("channel", [between], weights[-3:], keep)
        return out, (*mixed, between, *kept)

    def _stack_backward(self, grad: Tensor, saved: list[Saved]) -> Tensor:
        for weights, sums in zip(self._weights[::-1], self.sums[::-1]):
            streams, kept = saved.pop()
            if kept is None:
                grad, *streams = when_known(grad, *streams)
                _, kept = self._block(streams, weights, keep=True)
            # what the mixer keeps, and its input if that was added up; what the channels keep
            mixed, *inner, between, squeezed, hidden, slopes = kept
            x = inner.pop() if len(streams) == 2 else streams[0]
            grad, gt, dhu = self._calls.half("channel", [grad, squeezed, slopes], weights[-3:])
            new = [product(between, dhu), product(hidden, gt)]
            if self._kind == "token":
                grad, *rest = self._calls.half("token", [grad, mixed, x], weights[:-3])
                new += rest
            else:
                attended, qkv = inner
                grad, gt, dqkv = self._calls.half("attention", [grad, mixed, qkv], weights[:-3])
                new += [product(x, dqkv), product(attended, gt)]
            sums[:] = [old + value for old, value in zip(sums, new, strict=True)] if sums else new
        return grad


def when_known(*tensors: Tensor) -> list[Tensor]:
    """The same, each once all are known: keeps the compiler from computing what follows early and keeping it."""
    copies = [tensor.clone() for tensor in tensors]
    if copies[0].device.type == "xla":
        from torch_xla.core.xla_model import optimization_barrier_

        optimization_barrier_(copies)
    return copies


def product(a: Tensor, b: Tensor) -> Tensor:
    """Transpose of a times b, in float32 of bfloat16 operands."""
    return torch.matmul(a.float().t(), b.float())


class Recursion(torch.autograd.Function):
    """All rounds, the last with gradient: differentiable in x and the weights."""

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
        rounds = Rounds.of(x, flat, arch, mesh, length, keep)
        z_H, z_L, x = (mesh.enter(tensor, True) for tensor in (z_H, z_L, x))
        for _ in range(h_cycles - 1):
            z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles)
        ctx.rounds, ctx.mesh, ctx.saved = rounds, mesh, []
        z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles, ctx.saved)
        z_H, z_L = mesh.leave(z_H), mesh.leave(z_L)
        ctx.mark_non_differentiable(z_L)
        return z_H, z_L

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor, grad_L: Tensor) -> tuple[Tensor | None, ...]:
        mesh, rounds = ctx.mesh, ctx.rounds
        grad_x = mesh.leave(rounds.backward(mesh.enter(grad_H, True), ctx.saved))
        sums = rounds.gradients()
        flat = torch.cat([tensor.reshape(-1) for tensor in sums])
        total = mesh.leave(flat[None]).sum(0)
        parts = total.split([tensor.numel() for tensor in sums])
        grads = [part.view(tensor.shape) for part, tensor in zip(parts, sums, strict=True)]
        return None, None, None, None, None, None, None, grad_x, *grads


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
    """h_cycles rounds of z_H, z_L, x [L, B, D]; gradient of the last one only, and none where it is switched off.

    `keep`: so many of the last round's block applications keep their activations; backward computes the others again.
    """
    length, count, width = x.shape
    blocks, padded = prepared(w, arch, length), padded_length(length)

    def inwards(tensor: Tensor) -> Tensor:
        return F.pad(tensor.transpose(0, 1), (0, 0, 0, padded - length)).reshape(-1, width)

    def outwards(tensor: Tensor) -> Tensor:
        return tensor.view(count, padded, width)[:, :length].transpose(0, 1)

    flat = [weight for block in blocks for weight in block]
    streams = [inwards(tensor) for tensor in (z_H, z_L, x)]
    if not torch.is_grad_enabled():
        rounds = Rounds.of(streams[2], flat, arch, mesh, length)
        z_H, z_L, x = (mesh.enter(tensor, True) for tensor in streams)
        for _ in range(h_cycles):
            z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles)
        return outwards(mesh.leave(z_H)), outwards(mesh.leave(z_L))
    z_H, z_L = Recursion.apply(arch, mesh, length, (h_cycles, l_cycles), keep, *streams, *flat)
    return outwards(z_H), outwards(z_L)
