"""Speed of the training step and of evaluation, ours against plain eager PyTorch, paired in one process.

    python -m benchmarks.step --json step.json                      # every case, both precisions
    python -m benchmarks.step --cases small --precisions bfloat16 --threads 2 --rounds 9

Ours and the baseline (benchmarks/baseline.py) take turns, so that a busy machine slows both; the ratio is the median
of the pairs' ratios, its spread their quartiles; `processor_ratio` is that of the processor seconds used, which
neighbours on the machine disturb least (one thread). `ceiling` is the best matrix product's rate measured beside them;
the floors are the products' time at it and the other passes' time at the rate of a copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.baseline import EagerTrainer, EagerTRM
from benchmarks.passes import copy_rate, step_bytes
from trm.devices import open_backend
from trm.devices.base import Backend
from trm.network.cpu import blocked
from trm.network.eager.fused import Buffers
from trm.network.inference import InferenceNetwork, inference_batch
from trm.provenance import provenance
from trm.study.flops import forward_flops, inner_width, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig
from trm.training.state import Puzzles, TrainState
from trm.training.step import Batch, Originals, TrainStep

CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    # name: model, batch, cells of a puzzle
    "laptop": ({"d_model": 32, "heads": 4, "h_cycles": 2, "l_cycles": 2, "puzzle_tokens": 1}, 128, 16),
    "small": ({"d_model": 128, "heads": 4, "h_cycles": 2, "l_cycles": 2}, 32, 81),
    "paper-mlp": ({}, 8, 81),
    "paper-attention": ({"mixer": "attention", "position": "rope"}, 8, 81),
}
FLOORS = {("paper-mlp", "bfloat16"): 1.2, ("paper-attention", "bfloat16"): 1.3, ("small", "bfloat16"): 1.5}
FLOORS |= {(case, "float32"): 1.0 for case in CASES}
"""Ratios owed on the CPU (bfloat16 where the processor is fast at it)."""


def matmul_ceiling(dtype: torch.dtype, backend: Backend) -> float:
    """Best rate of a large product, the library's or our own, FLOP/s."""
    size = 2048 if backend.device.type == "cpu" else 8192
    a = torch.randn(size, size, device=backend.device).to(dtype)
    ways = [lambda: a @ a]
    if a.device.type == "cpu" and blocked.usable(a):
        ours, out = blocked.Linear(a, None, Buffers()), torch.empty_like(a)
        ours.prepare()
        ways.append(lambda: ours.forward(a, out))
    best = float("inf")
    for way in ways * 5:
        backend.synchronize()
        begun = time.perf_counter()
        way()
        backend.synchronize()
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def whole_layers(model: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether the network's layers are products from end to end here."""
    return blocked.usable(torch.empty(model.d_model, inner_width(model, model.d_model), dtype=dtype))


def random_rows(batch: int, cells: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Questions and answers, uint8 [batch, cells]."""
    rng = np.random.default_rng(0)
    return tuple(torch.from_numpy(rng.integers(1, vocab, (batch, cells), dtype=np.uint8)) for _ in range(2))


def our_step(
    run: RunConfig, cells: int, vocab: int, backend: Backend
) -> tuple[Callable[[], None], TrainState]:
    """A closure that takes one training step."""
    state = TrainState(run, Puzzles(cells, vocab, 1, 0), backend.precision(run.training.precision), backend)
    state.initialise(backend)
    batch = run.training.batch_size
    inputs, labels = random_rows(batch, cells, vocab)
    originals = Originals(
        *(backend.place(t) for t in (inputs, labels, torch.zeros(batch, dtype=torch.int32)))
    )
    rows = Batch(
        torch.arange(batch, dtype=torch.int32),
        torch.arange(vocab, dtype=torch.uint8).repeat(batch, 1),
        torch.arange(cells, dtype=torch.int16).repeat(batch, 1),
        torch.full((batch,), run.model.halt_max_steps, dtype=torch.int32),
    )
    program = backend.program(TrainStep(state, originals, backend))
    return lambda: program(Batch(*map(backend.place, rows)), run.model.h_cycles, run.model.l_cycles), state


def their_step(
    run: RunConfig, cells: int, vocab: int, backend: Backend
) -> tuple[Callable[[], None], EagerTRM]:
    """The same for the baseline."""
    dtype = backend.precision(run.training.precision).forward
    with torch.device(backend.device):
        net = EagerTRM(run.model, cells, vocab, 1, dtype)
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
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
    net = InferenceNetwork(
        weights,
        state.h_init,
        state.l_init,
        state.puzzle_table,
        state.arch,
        model.h_cycles,
        model.l_cycles,
        backend.network,
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


def paired(
    ours: Callable[[], None], theirs: Callable[[], None], rounds: int, backend: Backend
) -> dict[str, Any]:
    """Seconds of each (medians) and the ratio theirs / ours with its quartiles, after warming both up."""

    def seconds(call: Callable[[], None]) -> tuple[float, float]:
        backend.synchronize()
        begun, processor = time.perf_counter(), time.process_time()
        call()
        backend.synchronize()
        return time.perf_counter() - begun, time.process_time() - processor

    for call in (ours, theirs) * 3:
        call()
    # a round is long enough for the clock
    repeat = max(1, int(0.1 / max(1e-4, seconds(ours)[0])))
    mine, its = [], []
    for _ in range(rounds):
        for call, times in ((ours, mine), (theirs, its)):
            taken = [seconds(call) for _ in range(repeat)]
            times.append([sum(column) / repeat for column in zip(*taken)])
    ratios = sorted(b[0] / a[0] for a, b in zip(mine, its))
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "ours_seconds": statistics.median(wall for wall, _ in mine),
        "baseline_seconds": statistics.median(wall for wall, _ in its),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [quarters[0], quarters[2]],
        "processor_ratio": statistics.median(b[1] / a[1] for a, b in zip(mine, its)),
    }


def measure(
    case: str, precision: str, rounds: int, backend: Backend, batch: int | None
) -> list[dict[str, Any]]:
    """Training step and evaluation of one case."""
    fields, rows, cells = CASES[case]
    rows, vocab = batch or rows, 6 if cells == 16 else 11
    training = TrainingConfig(batch_size=rows, precision=precision, steps=10_000, ema=0.999)
    run = RunConfig(model=ModelConfig(**fields), training=training)
    dtype = backend.precision(precision).forward
    ours, state = our_step(run, cells, vocab, backend)
    theirs, net = their_step(run, cells, vocab, backend)
    ceiling, on_cpu = matmul_ceiling(dtype, backend), backend.name == "cpu"
    copies = copy_rate() if on_cpu else None
    results = []
    for what in ("train", "evaluate"):
        if what == "evaluate":
            steps = 2
            ours, rows = our_evaluation(state, backend, steps)
            theirs = their_evaluation(net, backend, rows, cells, vocab, steps)
            flops = steps * forward_flops(run.model, cells, vocab)
        else:
            flops = step_flops(run.model, cells, vocab)
        found = paired(ours, theirs, rounds, backend)
        rate = rows * flops / found["ours_seconds"]
        floor = FLOORS.get((case, precision)) if what == "train" and on_cpu else None
        whole = on_cpu and whole_layers(run.model, dtype)
        moved = (steps if what == "evaluate" else 1) * step_bytes(
            run.model, cells, rows, dtype.itemsize, what == "train", whole
        )
        results.append(
            {"case": case, "what": what, "precision": precision, "batch": rows}
            | found
            | {
                "rows_per_second": rows / found["ours_seconds"],
                "baseline_rows_per_second": rows / found["baseline_seconds"],
                "flops_per_second": rate,
                "ceiling": ceiling,
                "share_of_ceiling": rate / ceiling,
                "floor": floor,
                "product_floor_seconds": rows * flops / ceiling,
                "pass_floor_seconds": moved / copies if copies else None,
                "peak_memory_bytes": backend.peak_memory(),
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, help="rows of a training step instead of each case's own")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", dest="out", type=Path)
    args = parser.parse_args()
    backend = open_backend(args.backend, args.threads)
    results = []
    for case in args.cases:
        for precision in args.precisions:
            for found in measure(case, precision, args.rounds, backend, args.batch):
                low, high = found["ratio_quartiles"]
                speed = f"ours {found['rows_per_second']:8.1f} baseline {found['baseline_rows_per_second']:8.1f} rows/s"
                share = f"{100 * found['share_of_ceiling']:.0f} % of {found['ceiling'] / 1e9:.0f} GFLOP/s"
                print(
                    f"{case:16} {found['what']:9} {precision:9} batch {found['batch']:4}  {speed}  ratio "
                    f"{found['ratio']:.2f} ({low:.2f}-{high:.2f}), processor {found['processor_ratio']:.2f}  {share}",
                    flush=True,
                )
                results.append(found)
    if args.out:
        machine = {"device": backend.device_name(), "threads": torch.get_num_threads()}
        args.out.write_text(
            json.dumps({"machine": machine, "results": results, "provenance": provenance()}, indent=1)
        )


if __name__ == "__main__":
    main()
