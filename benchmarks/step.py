"""Speed of the training step and of evaluation relative to the strongest rivals, paired in one process.

    python -m benchmarks.step --threads 1 --json step.json               # the shipped shapes, both precisions
    python -m benchmarks.step --threads 1 --public CHECKOUT              # with the published code too
    TRM_CPU_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \\
        TORCHINDUCTOR_CACHE_DIR=/tmp/avx2 python -m benchmarks.step --precisions float32

Inductor's cache does not know ATEN_CPU_CAPABILITY: code for one instruction set crashes with another's.

Ours and the rivals take turns, so a busy machine slows all of them:

- `compiled`: our own model, differentiated by autograd, compiled whole by torch.compile
- `stack`: the paper's equations in plain PyTorch (tests/model/equations.py) with their block stack compiled
- `public`: the published code, compiled whole; the path is given by --public

A ratio is the median over rounds, its spread the quartiles. `processor_ratio` compares CPU seconds, which other
processes disturb least (with one thread). `ceiling` is the rate of a large matrix product in FLOP/s, measured in the
same process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import rivals
from benchmarks.frame import best_seconds, finish, in_turns, parser
from tests.model.equations import EagerTrainer, EagerTRM
from trm.backends.base import Backend
from trm.backends.registry import load_implementation, open_backend
from trm.checks.speed import random_rows, training_step
from trm.model.inference import InferenceNetwork, inference_batch
from trm.study.flops import forward_flops, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig
from trm.training.state import TrainState

SHIPPED = {"heads": 4, "layers": 1, "h_cycles": 1, "l_cycles": 2, "halt_max_steps": 8, "puzzle_tokens": 1}
"""The recipe of the laptop study (config/laptop.yaml)."""
NARROW = {"expansion": 1.0, "multiple": 8}
ATTENTION = {**SHIPPED, "mixer": "attention", "position": "rope", "expansion": 2.0, "multiple": 32}
CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    # name: model, batch, cells of a puzzle
    "6x6-d8": ({**SHIPPED, **NARROW, "d_model": 8}, 64, 36),
    "6x6-d32": ({**SHIPPED, **NARROW, "d_model": 32}, 64, 36),
    "6x6-d64": ({**SHIPPED, **NARROW, "d_model": 64}, 64, 36),
    "6x6-d128": ({**SHIPPED, **NARROW, "d_model": 128}, 64, 36),
    "9x9-d64": ({**SHIPPED, "multiple": 32, "halt_max_steps": 16, "d_model": 64}, 64, 81),
    "9x9-d128": ({**SHIPPED, "multiple": 32, "halt_max_steps": 16, "d_model": 128}, 64, 81),
    "9x9-attention-d32": ({**ATTENTION, "heads": 2, "d_model": 32}, 64, 81),
    "9x9-attention-d64": ({**ATTENTION, "d_model": 64}, 64, 81),
    "9x9-attention-d128": ({**ATTENTION, "d_model": 128}, 64, 81),
    "paper-mlp": ({}, 8, 81),
    "paper-attention": ({"mixer": "attention", "position": "rope"}, 8, 81),
}
LAPTOP = [name for name in CASES if not name.startswith("paper")]
BASELINES = ("compiled", "stack", "public")


def matmul_ceiling(precision: str, backend: Backend) -> float:
    """Best rate of a large matrix product, FLOP/s."""
    size = 2048 if backend.device.type == "cpu" else 8192
    a = torch.randn(size, size, device=backend.device).to(backend.precision(precision).forward)
    return 2 * size**3 / best_seconds(lambda: a @ a, backend)


def their_step(
    run: RunConfig, cells: int, vocab: int, backend: Backend, kind: str, options: dict[str, Any]
) -> tuple[Callable[[], None], EagerTRM]:
    """The same for a baseline: `eager`, or with its block stack through torch.compile with `options`."""
    dtype = backend.precision(run.training.precision).forward
    with torch.device(backend.device):
        net = EagerTRM(run.model, cells, vocab, 1, dtype)
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        if kind != "eager":
            net.stack = torch.compile(net.stack, dynamic=False, **options)
        trainer = EagerTrainer(net, run.training, run.training.batch_size, cells)
    inputs, labels = (backend.place(t).long() for t in random_rows(run.training.batch_size, cells, vocab))
    ids = torch.zeros(len(inputs), dtype=torch.long, device=backend.device)
    return lambda: trainer.step(inputs, labels, ids), net


def our_evaluation(
    state: TrainState, backend: Backend, steps: int, rows: int | None = None
) -> tuple[Callable[[], None], int]:
    """A closure that runs one batch of puzzles through `steps` supervision steps, and the batch's size."""
    model, cells = state.config.model, state.puzzles.seq_len
    weights = state.layout.views(state.params)
    vectors = (state.h_init, state.l_init, state.puzzle_table)
    net = InferenceNetwork(
        weights,
        *vectors,
        state.arch,
        model.h_cycles,
        model.l_cycles,
        load_implementation(backend.implementation),
    )
    rows = rows or inference_batch(cells + model.puzzle_tokens, model.d_model, backend.device)
    inputs = backend.place(random_rows(rows, cells, state.puzzles.vocab)[0])
    ids = torch.zeros(rows, dtype=torch.int32, device=backend.device)

    @torch.no_grad()
    def evaluate() -> None:
        x = net.embed(inputs, ids)
        z_H, z_L = net.start(rows, len(x))
        for _ in range(steps):
            z_H, z_L, logits, _ = net.step(z_H, z_L, x)
        logits.argmax(-1)

    return evaluate, rows


def their_evaluation(
    net: EagerTRM, backend: Backend, rows: int, cells: int, vocab: int, steps: int
) -> Callable[[], None]:
    """The same for the baseline, on as many rows."""
    inputs = backend.place(random_rows(rows, cells, vocab)[0]).long()
    puzzle = net.puzzle[torch.zeros(rows, dtype=torch.long, device=backend.device)]
    length = cells + net.config.puzzle_tokens

    @torch.no_grad()
    def evaluate() -> None:
        z_H = net.h_init.expand(rows, length, -1)
        z_L = net.l_init.expand(rows, length, -1)
        for _ in range(steps):
            z_H, z_L, logits, _ = net(z_H, z_L, inputs, puzzle)
        logits.argmax(-1)

    return evaluate


def rival_steps(
    run: RunConfig, cells: int, vocab: int, backend: Backend, names: list[str], checkout: Path | None
) -> tuple[dict[str, Callable[[], None]], dict[str, EagerTRM]]:
    """Training steps of the rivals that are available, and those that can be evaluated too."""
    rows = random_rows(run.training.batch_size, cells, vocab)
    steps: dict[str, Callable[[], None]] = {}
    nets: dict[str, EagerTRM] = {}
    for name in names:
        if name == "compiled":
            steps[name] = training_step(run, cells, vocab, backend, rivals.CompiledNetwork)[0]
        elif name == "stack":
            steps[name], nets[name] = their_step(run, cells, vocab, backend, name, {})
        elif name == "public" and checkout and run.model.mixer == "mlp":
            steps[name] = rivals.public(checkout, run, rows, vocab)
    return steps, nets


def measure(case: str, precision: str, backend: Backend, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Training step and evaluation of one case: a row for each baseline."""
    torch.compiler.reset()  # earlier cases would count towards torch.compile's recompilation limit
    fields, rows, cells = CASES[case]
    rows, vocab, steps = args.batch or rows, 8 if cells == 36 else 11, 2
    training = TrainingConfig(batch_size=rows, precision=precision, steps=10_000, ema=0.999)
    run = RunConfig(model=ModelConfig(**fields), training=training)
    train, state = training_step(run, cells, vocab, backend)
    trains, nets = rival_steps(run, cells, vocab, backend, args.baselines, args.public)
    evaluate, many = our_evaluation(state, backend, steps)
    ceiling = matmul_ceiling(precision, backend)
    evaluates = {
        name: their_evaluation(net, backend, many, cells, vocab, steps) for name, net in nets.items()
    }
    results = []
    for what, count, flops, calls in (
        ("train", rows, step_flops(run.model, cells, vocab), {"ours": train} | trains),
        ("evaluate", many, steps * forward_flops(run.model, cells, vocab), {"ours": evaluate} | evaluates),
    ):
        found = in_turns(calls, args.rounds, backend)
        ours = found.pop("ours")["seconds"]
        share = {"of_ceiling": count * flops / ours / ceiling, "ceiling": ceiling}
        for baseline, row in found.items():
            named = {"case": case, "what": what, "precision": precision, "batch": count, "against": baseline}
            rates = {"rows/s": count / ours, "theirs": count / row.pop("seconds")}
            results.append(named | rates | row | share)
    return results


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--cases", nargs="+", choices=CASES, default=LAPTOP)
    options.add_argument("--precisions", nargs="+", default=["bfloat16", "float32"])
    options.add_argument("--baselines", nargs="+", choices=BASELINES, default=list(BASELINES))
    options.add_argument("--threads", type=int)
    options.add_argument("--batch", type=int, help="rows of a training step instead of each case's own")
    options.add_argument("--backend", default="auto")
    options.add_argument("--public", type=Path, help="a checkout of the published code")
    args = options.parse_args()
    backend = open_backend(args.backend, args.threads)
    results: list[dict[str, Any]] = []
    for case in args.cases:
        for precision in args.precisions:
            print(f"{case}, {precision}", file=sys.stderr, flush=True)
            results += measure(case, precision, backend, args)
    device = {"device": backend.device_name(), "threads": torch.get_num_threads()}
    finish(results, args.json, **device)


if __name__ == "__main__":
    main()
