"""The Tiny Recursive Model as plain mathematics (arXiv 2510.04871, sections 2-4).

It imports only torch, so this file and safetensors are enough to run a trained model anywhere:

    import definition
    model = definition.load("results/runs/NAME/weights.safetensors")
    answers, halt_logits = definition.solve(model, questions)      # symbols as in the data set files

Shapes: B rows, L tokens (P puzzle tokens, then S cells), D width, I inner width, H heads, V vocabulary.
The token axis comes first, so both mixers are plain matrix products without transposes: over tokens from the left,
over channels from the right. Weights are [out, in], stored in float32 and cast where they are used.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-5  # of RMSNorm
ROPE_BASE = 10000.0

Weights = Mapping[str, Tensor]


class Architecture(NamedTuple):
    """Hyperparameters that cannot be read off the weight shapes."""

    layers: int
    heads: int
    puzzle_tokens: int
    rope: bool
    dtype: torch.dtype


def rms_norm(x: Tensor, dim: int) -> Tensor:
    """RMSNorm without a weight (arXiv 1910.07467) along `dim`, computed in at least float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(dim, keepdim=True) + EPS)).to(x.dtype)


def swiglu_tokens(x_LBD: Tensor, gate_up_IL: Tensor, down_LI: Tensor) -> Tensor:
    """SwiGLU (arXiv 2002.05202) over the token axis, per channel."""
    # L is 97 in the paper: in memory the weight is [L, I], since a GPU loads rows of an odd length without alignment
    gate_up_LI = gate_up_IL.t().contiguous().to(x_LBD.dtype)
    gate, up = torch.mm(gate_up_LI.t(), x_LBD.flatten(1)).chunk(2)
    return torch.mm(down_LI.to(x_LBD.dtype), F.silu(gate) * up).view_as(x_LBD)


def swiglu_channels(x_LBD: Tensor, gate_up_ID: Tensor, down_DI: Tensor) -> Tensor:
    """SwiGLU over the channel axis, per token."""
    gate, up = F.linear(x_LBD, gate_up_ID.to(x_LBD.dtype)).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down_DI.to(x_LBD.dtype))


def rope_tables(length: int, head_width: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Cosine and sine [L, 1, 1, head_width] for half-split rotary embeddings (arXiv 2104.09864), float32."""
    frequency = ROPE_BASE ** -(
        torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    )
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)[:, None, None]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply half-split rotary embeddings to x [L, ..., head_width]."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def attention(x_LBD: Tensor, qkv: Tensor, out: Tensor, heads: int, tables: Sequence[Tensor] = ()) -> Tensor:
    """Bidirectional multi-head self-attention without biases; `tables`: those of `rope_tables`, if it has any."""
    qk_LB2HK, v_LB1HK = F.linear(x_LBD, qkv.to(x_LBD.dtype)).unflatten(-1, (3, heads, -1)).split((2, 1), 2)
    if tables:
        cos, sin = (table[:, None] for table in tables)
        qk_LB2HK = rotate(qk_LB2HK, cos, sin)  # as one tensor: one kernel on a GPU
    q, k, v = (t.permute(1, 2, 0, 3) for t in (*qk_LB2HK.unbind(2), v_LB1HK[:, :, 0]))
    y_BHLK = F.scaled_dot_product_attention(q, k, v)
    return F.linear(y_BHLK.permute(2, 0, 1, 3).flatten(2), out.to(x_LBD.dtype))


def block(x_LBD: Tensor, w: Weights, prefix: str, arch: Architecture) -> Tensor:
    """One post-norm block: token mixing, then channel mixing."""
    if prefix + "token_mlp.down" in w:
        mixed = swiglu_tokens(x_LBD, w[prefix + "token_mlp.gate_up"], w[prefix + "token_mlp.down"])
        x_LBD = rms_norm(x_LBD + mixed, dim=0)
    else:
        qkv, out = w[prefix + "attention.qkv"], w[prefix + "attention.out"]
        tables: Sequence[Tensor] = ()
        if arch.rope:
            # a compiler that is given tables does not compute them again for every element
            known = "rope.cos" in w
            sizes = x_LBD.shape[0], x_LBD.shape[-1] // arch.heads
            tables = (w["rope.cos"], w["rope.sin"]) if known else rope_tables(*sizes, x_LBD.device)
        x_LBD = rms_norm(x_LBD + attention(x_LBD, qkv, out, arch.heads, tables), dim=-1)
    mixed = swiglu_channels(x_LBD, w[prefix + "channel_mlp.gate_up"], w[prefix + "channel_mlp.down"])
    return rms_norm(x_LBD + mixed, dim=-1)


def stack(x_LBD: Tensor, w: Weights, arch: Architecture) -> Tensor:
    """The block stack, shared by all updates of z_L and z_H."""
    for i in range(arch.layers):
        x_LBD = block(x_LBD, w, f"blocks.{i}.", arch)
    return x_LBD


def recursion_round(
    z_H: Tensor, z_L: Tensor, x: Tensor, w: Weights, arch: Architecture, l_cycles: int
) -> tuple[Tensor, Tensor]:
    """`l_cycles` updates of the latent z_L, then one update of the answer z_H; all [L, B, D]."""
    inject = z_H + x
    for _ in range(l_cycles):
        z_L = stack(z_L + inject, w, arch)
    return stack(z_H + z_L, w, arch), z_L


def one_hot_lookup(ids: Tensor, table: Tensor) -> Tensor:
    """`F.embedding` as a matrix product, for devices on which the scatter in an embedding's backward is slow: a GPU has
    to sort the ids, and XLA's partitioner would gather all rows on every chip."""
    symbols = torch.arange(table.shape[0], device=ids.device, dtype=torch.int32)
    return torch.matmul((ids[..., None] == symbols).to(table.dtype), table)


def embed(
    inputs_BS: Tensor,
    puzzle_BD: Tensor | None,
    w: Weights,
    arch: Architecture,
    lookup: Callable[[Tensor, Tensor], Tensor] = F.embedding,
) -> Tensor:
    """Input embedding x_LBD, scaled by sqrt(D): puzzle tokens (the puzzle vector is the first), then the cells."""
    x = lookup(inputs_BS.t().int(), w["embed.weight"]).to(arch.dtype)
    if arch.puzzle_tokens:
        rows, width = x.shape[1:]
        first = x.new_zeros(1, rows, width) if puzzle_BD is None else puzzle_BD.to(arch.dtype)[None]
        x = torch.cat((first, x.new_zeros(arch.puzzle_tokens - 1, rows, width), x))
    if "position.weight" in w:
        x = (x + w["position.weight"].to(arch.dtype)[:, None]) * 0.5**0.5
    return x * float(w["embed.weight"].shape[1] ** 0.5)


def heads(z_H: Tensor, w: Weights, arch: Architecture) -> tuple[Tensor, Tensor]:
    """Answer logits [S, B, V] in the forward dtype and halt logits [B] in float32, read from the first token."""
    logits_SBV = F.linear(z_H[arch.puzzle_tokens :], w["head.weight"].to(z_H.dtype))
    wide = torch.promote_types(z_H.dtype, torch.float32)
    halt_B2 = F.linear(z_H[0].to(wide), w["halt.weight"].to(wide), w["halt.bias"].to(wide))
    return logits_SBV, halt_B2[:, 0]


def supervision_step(
    z_H: Tensor,
    z_L: Tensor,
    inputs_BS: Tensor,
    puzzle_BD: Tensor | None,
    w: Weights,
    arch: Architecture,
    h_cycles: int,
    l_cycles: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One supervision step: h_cycles - 1 rounds without gradient, then one with gradient.

    Returns z_H, z_L [L, B, D] (detach them before the next step), answer logits [S, B, V], halt logits [B].
    """
    x = embed(inputs_BS, puzzle_BD, w, arch)
    with torch.no_grad():
        for _ in range(h_cycles - 1):
            z_H, z_L = recursion_round(z_H, z_L, x, w, arch, l_cycles)
    z_H, z_L = recursion_round(z_H, z_L, x, w, arch, l_cycles)
    return (z_H, z_L, *heads(z_H, w, arch))


class TrainedNetwork(NamedTuple):
    """A trained model, as returned by `load`."""

    weights: dict[str, Tensor]
    puzzle: Tensor | None
    """Puzzle table [num_ids, D]."""
    h_init: Tensor
    l_init: Tensor
    """Start vectors [D] of z_H and z_L."""
    arch: Architecture
    h_cycles: int
    l_cycles: int
    steps: int
    """Maximum number of supervision steps in training."""


def load(path: str | PathLike[str], kind: str = "ema", dtype: torch.dtype = torch.float32) -> TrainedNetwork:
    """Load a run's weights.safetensors; `kind`: ema or raw; `dtype`: the forward dtype.

    Raises:
        KeyError: the file has no such weights, or was not written by a run.
    """
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        model = json.loads(file.metadata()["config"])["model"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    puzzle = tensors.pop("raw.puzzle.weight", None)
    weights = {
        name.split(".", 1)[1]: tensor.float()
        for name, tensor in tensors.items()
        if name.startswith(f"{kind}.")
    }
    if not weights:
        raise KeyError(f"{path} holds no {kind} weights")
    arch = Architecture(
        model["layers"], model["heads"], model["puzzle_tokens"], model["position"] == "rope", dtype
    )
    h_init, l_init = (tensors[f"buffers.{name}"].to(dtype) for name in ("h_init", "l_init"))
    return TrainedNetwork(
        weights, puzzle, h_init, l_init, arch, model["h_cycles"], model["l_cycles"], model["halt_max_steps"]
    )


@torch.no_grad()
def solve(
    model: TrainedNetwork, inputs_BS: Tensor, puzzle_ids_B: Tensor | None = None, steps: int | None = None
) -> tuple[Tensor, Tensor]:
    """Answers [B, S] and halt logits [B] after `steps` supervision steps (None: as many as in training).

    `inputs_BS`: the questions' symbols; `puzzle_ids_B`: rows of the puzzle table (None: row 0).
    """
    rows = len(inputs_BS)
    puzzle_BD = None
    if model.puzzle is not None:
        ids = torch.zeros(rows, dtype=torch.long) if puzzle_ids_B is None else puzzle_ids_B.long()
        puzzle_BD = model.puzzle[ids]
    shape = (inputs_BS.shape[1] + model.arch.puzzle_tokens, rows, len(model.h_init))
    z_H, z_L = model.h_init.expand(shape), model.l_init.expand(shape)
    for _ in range(steps or model.steps):
        z_H, z_L, logits_SBV, halt_B = supervision_step(
            z_H, z_L, inputs_BS, puzzle_BD, model.weights, model.arch, model.h_cycles, model.l_cycles
        )
    return logits_SBV.argmax(-1).t(), halt_B
