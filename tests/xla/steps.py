"""Train a few steps on one backend and print what came out, as JSON: the device count is fixed for a whole process.

CPU_NUM_DEVICES=4 python -m tests.xla.steps xla DATASET '[{"mixer": "mlp", "steps": 5}]'
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from trm.backends.base import Backend
from trm.backends.registry import open_backend
from trm.study.schema import RunConfig
from trm.study.stages import Recursion
from trm.training.dataset import Dataset
from trm.training.feed import Feed
from trm.training.metrics import named_means
from trm.training.programs import program_of
from trm.training.state import TrainState


def config(mixer: str, hints: tuple[int, int] = (0, 0), **training: Any) -> RunConfig:
    """A tiny run on 4x4 Sudoku."""
    model = {"mixer": mixer, "d_model": 32, "heads": 2, "h_cycles": 2, "l_cycles": 1, "halt_max_steps": 4}
    model |= {"puzzle_tokens": 2, "position": "rope" if mixer == "attention" else "none"}
    data = {"source": "generate", "augmentations": 0, "box_rows": 2, "box_cols": 2, "hints": hints}
    own = {"batch_size": 16, "steps": 100, "lr": 1e-3, "warmup_steps": 5, "precision": "float32"}
    training = own | training
    return RunConfig.model_validate({"model": model, "data": data, "training": training})


def train(
    backend: Backend,
    run: RunConfig,
    dataset: Dataset,
    steps: int,
    remat: bool | None,
    cycles: list[tuple[int, int]],
) -> dict[str, Any]:
    """Per-step losses, compilations of the step, how often its Python code ran, and a checksum of the weights after
    `steps` steps, which take turns in the numbers of `cycles`."""
    state = TrainState(run, dataset.puzzles, backend.precision(run.training.precision), backend)
    state.initialise(backend)
    backend.implementation = backend.implementation.replace("fused", "plain")
    step = program_of(state, dataset.originals("train", backend), backend)
    if remat is not None:
        step.network.remat = remat
    ran, prepare = [], step.network.prepare
    step.network.prepare = lambda: (ran.append(1), prepare())
    feed = Feed(run, dataset, backend)
    losses, compiled = [], []
    for number in range(1, steps + 1):
        batch = feed.batch(number)
        backend.synchronize()  # the metric sums set to zero below are a program of their own
        before = backend.counters().get("xla/compilations", 0)
        step(batch, Recursion(*cycles[number % len(cycles)], run.model.halt_max_steps))
        compiled.append(backend.counters().get("xla/compilations", 0) - before)
        means = named_means(backend.fetch(state.meter.sums).tolist(), 1, run.training.batch_size)
        losses.append([means["train/lm_loss"], means["train/halt_loss"], means["train/grad_norm"]])
        state.meter.sums.zero_()
    weights = state.fetched(state.params, backend)
    checksum = weights.double().square().sum().item()
    return {"losses": losses, "compiled": compiled, "ran": len(ran), "weights": checksum}


def main() -> None:
    backend = open_backend(sys.argv[1], 1)
    dataset = Dataset(Path(sys.argv[2]))
    results = []
    for case in json.loads(sys.argv[3]):
        os.environ["TRM_XLA_REPLAY"] = case.pop("replay", "auto")
        steps, remat, cycles = case.pop("steps"), case.pop("remat", None), case.pop("cycles", [(2, 1)])
        results.append(train(backend, config(**case), dataset, steps, remat, cycles))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
