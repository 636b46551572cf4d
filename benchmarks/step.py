"""Speed of the training step and of evaluation relative to plain PyTorch, eager and compiled, paired in one process.

    python -m benchmarks.step --json step.json                      # every case, both precisions
    python -m benchmarks.step --cases small --precisions bfloat16 --threads 2 --rounds 9

Ours and the baselines (benchmarks/baseline.py, eager and through torch.compile) take turns, so a busy machine slows
all of them. A ratio is the median over rounds, its spread the quartiles. `processor_ratio` compares CPU seconds, which
other processes disturb least (with one thread). `ceiling` is the rate of a large matrix product in FLOP/s, measured in
the same process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.baseline import EagerTrainer, EagerTRM
from benchmarks.frame import Ratio, best_seconds, finish, in_turns, parser
from trm.backends.base import Backend
from trm.backends.registry import load_implementation, open_backend
from trm.model.act import Rows
from trm.model.inference import InferenceNetwork, inference_batch
from trm.study.flops import forward_flops, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig
from trm.study.tasks import Sizes
from trm.training.state import TrainState
from trm.training.step import Batch, TrainStep

CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    # name: model, batch, cells of a puzzle
    "laptop": ({"d_model": 32, "heads": 4, "h_cycles": 2, "l_cycles": 2, "puzzle_tokens": 1}, 128, 16),
    "small": ({"d_model": 128, "heads": 4, "h_cycles": 2, "l_cycles": 2}, 32, 81),
    "paper-mlp": ({}, 8, 81),
    "paper-attention": ({"mixer": "attention", "position": "rope"}, 8, 81),
}
BASELINES = ("compiled", "eager")
TARGETS = {("train", case, "bfloat16", "compiled"): 1.2 for case in ("small", "paper-mlp", "paper-attention")}
"""Smallest ratios that the project accepts on a CPU with fast bfloat16."""


def matmul_ceiling(precision: str, backend: Backend) -> float:
    """Best rate of a large matrix product, FLOP/s."""
    size = 2048 if backend.device.type == "cpu" else 8192
    a = torch.randn(size, size, device=backend.device).to(backend.precision(precision).forward)
    return 2 * size**3 / best_seconds(lambda: a @ a, backend)


def random_rows(batch: int, cells: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Questions and answers, uint8 [batch, cells]."""
    rng = np.random.default_rng(0)
    return tuple(torch.from_numpy(rng.integers(1, vocab, (batch, cells), dtype=np.uint8)) for _ in range(2))


def our_step(
    run: RunConfig, cells: int, vocab: int, backend: Backend
) -> tuple[Callable[[], None], TrainState]:
    """A closure that takes one training step."""
    state = TrainState(run, Sizes(cells, vocab, 1, 0), backend.precision(run.training.precision), backend)
    state.initialise(backend)
    batch = state.local_batch
    inputs, labels = random_rows(batch, cells, vocab)
    originals = Rows(*map(backend.place, (inputs, labels, torch.zeros(batch, dtype=torch.int32))))
    rows = Batch(
        torch.arange(batch, dtype=torch.int32),
        torch.arange(vocab, dtype=torch.uint8).repeat(batch, 1),
        torch.arange(cells, dtype=torch.int16).repeat(batch, 1),
        torch.full((batch,), run.model.halt_max_steps, dtype=torch.int32),
    )
    program = backend.program(TrainStep(state, originals, backend))
    return lambda: program(Batch(*map(backend.place, rows)), run.model.h_cycles, run.model.l_cycles), state


def their_step(
    run: RunConfig, cells: int, vocab: int, backend: Backend, kind: str, options: dict[str, Any]
) -> tuple[Callable[[], None], EagerTRM]:
    """The same for a baseline: `eager`, or through torch.compile with `options` (`compiled`: its block stack,
    `whole`: its whole forward pass)."""
    dtype = backend.precision(run.training.precision).forward
    with torch.device(backend.device):
        net = EagerTRM(run.model, cells, vocab, 1, dtype)
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        if kind != "eager":
            part = "forward" if kind == "whole" else "stack"
            setattr(net, part, torch.compile(getattr(net, part), dynamic=False, **options))
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
        weights, *vectors, state.arch, model.h_cycles, model.l_cycles, load_implementation(backend.network)
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


def measure(
    case: str, precision: str, rounds: int, backend: Backend, batch: int | None, baselines: list[str]
) -> list[dict[str, Any]]:
    """Training step and evaluation of one case: a row for each baseline."""
    torch.compiler.reset()  # earlier cases would count towards torch.compile's recompilation limit
    fields, rows, cells = CASES[case]
    rows, vocab, steps = batch or rows, 6 if cells == 16 else 11, 2
    training = TrainingConfig(batch_size=rows, precision=precision, steps=10_000, ema=0.999)
    run = RunConfig(model=ModelConfig(**fields), training=training)
    train, state = our_step(run, cells, vocab, backend)
    theirs = {name: their_step(run, cells, vocab, backend, name, {}) for name in baselines}
    evaluate, many = our_evaluation(state, backend, steps)
    ceiling = matmul_ceiling(precision, backend)
    trains, evaluates = {"ours": train}, {"ours": evaluate}
    for name, (step, net) in theirs.items():
        trains[name] = step
        evaluates[name] = their_evaluation(net, backend, many, cells, vocab, steps)
    results = []
    for what, count, flops, calls in (
        ("train", rows, step_flops(run.model, cells, vocab), trains),
        ("evaluate", many, steps * forward_flops(run.model, cells, vocab), evaluates),
    ):
        found = in_turns(calls, rounds, backend)
        ours = found.pop("ours")["seconds"]
        share = {"of_ceiling": count * flops / ours / ceiling, "ceiling": ceiling}
        for baseline, row in found.items():
            named = {"case": case, "what": what, "precision": precision, "batch": count, "against": baseline}
            rates = {"rows/s": count / ours, "theirs": count / row.pop("seconds")}
            results.append(named | rates | row | share)
    return results


def ratio_of(row: dict[str, Any], backend: Backend) -> Ratio:
    """The row's line in the table of `make bench`."""
    case, what, precision, baseline = (row[key] for key in ("case", "what", "precision", "against"))
    target = TARGETS.get((what, case, precision, baseline)) if backend.name == "cpu" else None
    name, against = f"{case}, {row['batch']} rows", f"plain PyTorch, {baseline}"
    return Ratio(f"{what}, {precision}", name, row["ratio"], *row["ratio_quartiles"], target, against)


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--precisions", nargs="+", default=["bfloat16", "float32"])
    options.add_argument("--baselines", nargs="+", choices=BASELINES, default=list(BASELINES))
    options.add_argument("--threads", type=int)
    options.add_argument("--batch", type=int, help="rows of a training step instead of each case's own")
    options.add_argument("--backend", default="auto")
    args = options.parse_args()
    backend = open_backend(args.backend, args.threads)
    results: list[dict[str, Any]] = []
    for case in args.cases:
        for precision in args.precisions:
            print(f"{case}, {precision}", file=sys.stderr, flush=True)
            results += measure(case, precision, args.rounds, backend, args.batch, args.baselines)
    device = {"device": backend.device_name(), "threads": torch.get_num_threads()}
    finish(results, args.json, [ratio_of(row, backend) for row in results], **device)


if __name__ == "__main__":
    main()
