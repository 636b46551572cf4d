"""The training step in JAX, jitted whole with donated buffers: a rival of benchmarks/step.py, where JAX is installed.

The same mathematics as trm/model/definition.py: one block, T = 1, either mixer, in the run's precision with float32
parameters, statistics of norms and losses. XLA's pool has as many threads as the process has processors.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import Tensor

from benchmarks.rivals import Step
from trm.backends.cpu.build import isa
from trm.study.flops import inner_width
from trm.study.schema import ModelConfig, RunConfig

ROPE_BASE = 10000.0


def weight_shapes(model: ModelConfig, cells: int, vocab: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters for puzzles of `cells` cells."""
    length, width = cells + model.puzzle_tokens, model.d_model
    inner = inner_width(model, width)
    if model.mixer == "mlp":
        tokens = inner_width(model, length)
        mixer = {"token_gate_up": (2 * tokens, length), "token_down": (length, tokens)}
    else:
        mixer = {"qkv": (3 * width, width), "out": (width, width)}
    channels = {"gate_up": (2 * inner, width), "down": (width, inner)}
    ends = {
        "embed": (vocab, width),
        "puzzle": (1, width),
        "head": (vocab, width),
        "halt": (2, width),
        "bias": (2,),
    }
    return mixer | channels | ends


def step(run: RunConfig, rows: tuple[Tensor, Tensor], vocab: int) -> Step:
    """A training step on random rows (inputs, labels [B, S])."""
    if isa() == "avx2":  # a smaller set than the processor's
        os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX2"
    api: Any = importlib.import_module("jax")
    np: Any = importlib.import_module("jax.numpy")
    model, training = run.model, run.training
    batch, cells = rows[0].shape
    length, width = cells + model.puzzle_tokens, model.d_model
    dtype = np.float32 if training.precision == "float32" else np.bfloat16

    def random(*shape: int) -> Any:
        return np.asarray(torch.randn(shape).mul_(shape[-1] ** -0.5).numpy())

    def norm(x: Any, axis: int) -> Any:
        wide = x.astype(np.float32)
        return (x * api.lax.rsqrt((wide * wide).mean(axis, keepdims=True) + 1e-5)).astype(dtype)

    def rotate(x: Any) -> Any:
        width = x.shape[-1]
        angle = np.outer(np.arange(length), ROPE_BASE ** (-np.arange(0, width, 2) / width))
        angle = np.concatenate([angle, angle], -1)[:, None, None]
        first, second = np.split(x, 2, -1)
        turned = np.concatenate([-second, first], -1)
        return (x * np.cos(angle) + turned * np.sin(angle)).astype(dtype)

    def attention(x: Any, w: Any) -> Any:
        heads = (x @ w["qkv"].T).reshape(length, batch, 3, model.heads, -1)
        q, k, v = (heads[:, :, i] for i in range(3))
        if model.position == "rope":
            q, k = rotate(q), rotate(k)
        scores = np.einsum("lbhk,mbhk->bhlm", q, k).astype(np.float32) * q.shape[-1] ** -0.5
        mixed = np.einsum("bhlm,mbhk->lbhk", api.nn.softmax(scores).astype(dtype), v)
        return mixed.reshape(length, batch, width) @ w["out"].T

    def block(x: Any, w: Any) -> Any:
        if model.mixer == "mlp":
            gate, up = np.split(np.einsum("il,lbd->ibd", w["token_gate_up"], x), 2)
            x = norm(x + np.einsum("li,ibd->lbd", w["token_down"], api.nn.silu(gate) * up), 0)
        else:
            x = norm(x + attention(x, w), -1)
        gate, up = np.split(x @ w["gate_up"].T, 2, -1)
        return norm(x + (api.nn.silu(gate) * up) @ w["down"].T, -1)

    def loss(weights: Any, z_H: Any, z_L: Any, inputs: Any, labels: Any) -> Any:
        w = {name: value.astype(dtype) for name, value in weights.items()}
        puzzle = np.broadcast_to(w["puzzle"], (model.puzzle_tokens, batch, width))
        inject = z_H + np.concatenate([puzzle, w["embed"][inputs.T]]) * dtype(width**0.5)
        for _ in range(model.l_cycles):
            z_L = block(z_L + inject, w)
        z_H = block(z_H + z_L, w)
        logits = (z_H[model.puzzle_tokens :] @ w["head"].T).astype(np.float32)
        halt = (z_H[0].astype(np.float32) @ weights["halt"].T + weights["bias"])[:, 0]
        logs = np.where(logits < 0, -np.log1p(-np.minimum(logits, 0)), np.log1p(np.maximum(logits, 0)))
        logp = logs - api.nn.logsumexp(logs, -1, keepdims=True)
        cross_entropy = -np.take_along_axis(logp, labels.T[..., None], -1)[..., 0].mean(0)
        exact = (logits.argmax(-1) == labels.T).all(0).astype(np.float32)
        halting = np.maximum(halt, 0) - halt * exact + np.log1p(np.exp(-np.abs(halt)))
        return (cross_entropy + 0.5 * halting).mean(), (z_H, z_L)

    def update(w: Any, m: Any, v: Any, ema: Any, t: Any, z_H: Any, z_L: Any, inputs: Any, labels: Any) -> Any:
        (_, (z_H, z_L)), grads = api.value_and_grad(loss, has_aux=True)(w, z_H, z_L, inputs, labels)
        b1, b2 = training.beta1, training.beta2
        each = api.tree.map
        m = each(lambda m, g: m + (1 - b1) * (g - m), m, grads)
        v = each(lambda v, g: b2 * v + (1 - b2) * g * g, v, grads)
        rate, keep = training.lr / (1 - b1**t), 1 - training.lr * training.weight_decay
        w = each(lambda p, m, v: p * keep - rate * np.arctan2(m, np.sqrt(v / (1 - b2**t))), w, m, v)
        ema = each(lambda e, p: e + (1 - training.ema) * (p - e), ema, w)
        return w, m, v, ema, t + 1, z_H, z_L

    jitted = api.jit(update, donate_argnums=tuple(range(7)))
    weights = {name: random(*shape) for name, shape in weight_shapes(model, cells, vocab).items()}
    zeros = api.tree.map(np.zeros_like, weights)
    states = [np.asarray(torch.randn(length, batch, width).numpy()).astype(dtype) for _ in range(2)]
    copies = [api.tree.map(np.array, tree) for tree in (weights, zeros, zeros, weights)]
    arguments = [np.asarray(tensor.int().numpy()) for tensor in rows]
    state = [*copies, np.float32(1), *states]

    def call() -> None:
        state[:] = jitted(*state, *arguments)
        state[-1].block_until_ready()

    return call
