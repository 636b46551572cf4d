"""Other implementations of a training step that benchmarks/step.py compares with: forward, backward, optimiser, EMA.

The published code is imported from a folder that the caller names (`--public`, a checkout of the authors' repository
with its Python dependencies). It is no part of this project.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trm.model import definition
from trm.model.plain import PlainNetwork
from trm.study.schema import RunConfig

Step = Callable[[], None]


class ForeachAdamAtan2:
    """Adam-atan2, weight decay and EMA in PyTorch's multi-tensor operations, its fastest on a CPU without compiling."""

    def __init__(self, params: list[Tensor], run: RunConfig):
        training = run.training
        self.params, self.t = params, 0
        self.m, self.v = ([torch.zeros_like(p) for p in params] for _ in range(2))
        self.ema = [p.detach().clone() for p in params]
        self.betas, self.lr, self.decay = (training.beta1, training.beta2), training.lr, training.weight_decay
        self.average = training.ema

    @torch.no_grad()
    def step(self) -> None:
        """Update from the gradients, and clear them."""
        self.t += 1
        b1, b2 = self.betas
        grads = [p.grad for p in self.params]
        torch._foreach_lerp_(self.m, grads, 1 - b1)
        torch._foreach_mul_(self.v, b2)
        torch._foreach_addcmul_(self.v, grads, grads, 1 - b2)
        deviation = torch._foreach_div(torch._foreach_sqrt(self.v), (1 - b2**self.t) ** 0.5)
        torch._foreach_mul_(self.params, 1 - self.lr * self.decay)
        directions = [torch.atan2(m, d) for m, d in zip(self.m, deviation)]
        torch._foreach_add_(self.params, directions, alpha=-self.lr / (1 - b1**self.t))
        torch._foreach_lerp_(self.ema, self.params, 1 - self.average)
        for p in self.params:
            p.grad = None


class CompiledNetwork(PlainNetwork):
    """Our own network, compiled whole at the first call for each number of cycles."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._step = torch.compile(definition.supervision_step, dynamic=False)

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor, Tensor, Tensor] = self._step(
            z_H, z_L, inputs, puzzle, self.weights, self._arch, h_cycles, l_cycles
        )
        return outputs


def public(folder: Path, run: RunConfig, rows: tuple[Tensor, Tensor], vocab: int) -> Step:
    """A step of the published code, compiled whole."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    layers: Any = importlib.import_module("models.layers")
    model, batch = run.model, run.training.batch_size
    layers._find_multiple = lambda width, _: (
        -(-width // model.multiple) * model.multiple
    )  # equal inner widths
    trm: Any = importlib.import_module("models.recursive_reasoning.trm")
    losses: Any = importlib.import_module("models.losses")
    inputs, labels = rows
    config = {
        "batch_size": batch, "seq_len": inputs.shape[1], "puzzle_emb_ndim": model.d_model,
        "num_puzzle_identifiers": 1, "vocab_size": vocab, "H_cycles": model.h_cycles, "L_cycles": model.l_cycles,
        "H_layers": 0, "L_layers": model.layers, "hidden_size": model.d_model, "expansion": model.expansion,
        "num_heads": model.heads, "pos_encodings": "none", "halt_max_steps": model.halt_max_steps,
        "halt_exploration_prob": run.training.exploration, "mlp_t": True, "puzzle_emb_len": model.puzzle_tokens,
        "forward_dtype": "float32" if run.training.precision == "float32" else "bfloat16",
    }  # fmt: skip
    net = trm.TinyRecursiveReasoningModel_ACTV1(config)
    head = losses.ACTLossHead(net, "stablemax_cross_entropy").train()
    call = torch.compile(head, dynamic=False)
    optimiser = ForeachAdamAtan2(list(head.parameters()), run)
    puzzle = net.inner.puzzle_emb
    batch_rows = {
        "inputs": inputs.to(torch.int32),
        "labels": labels.to(torch.int32),
        "puzzle_identifiers": torch.zeros(batch, dtype=torch.int32),
    }
    state = [head.initial_carry(batch_rows)]

    def step() -> None:
        state[0], loss, *_ = call(return_keys=[], carry=state[0], batch=batch_rows)
        (loss / batch).backward()
        optimiser.step()
        with torch.no_grad():
            total = puzzle.local_weights.grad.sum(0, keepdim=True)
            puzzle.weights.mul_(1 - run.training.lr * 0.1).add_(total.sign(), alpha=-run.training.lr)
            puzzle.local_weights.grad = None

    return step
