"""Measures how fast this machine's CPU trains, so that a plan can say how long a study takes before its first run.

`python -m trm.checks.speed` takes a few seconds. It builds the CPU kernel if there is none yet.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trm.backends.base import Backend
from trm.backends.cpu.library import functions
from trm.backends.cpu.speed import Speed, write
from trm.backends.registry import open_backend
from trm.data.progress import threads
from trm.model.act import Rows
from trm.study.flops import step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig
from trm.study.stages import Recursion
from trm.study.tasks import Sizes
from trm.study.text import flops_text
from trm.training.programs import program_of
from trm.training.state import TrainState
from trm.training.step import Batch, TrainStep

CELLS, VOCAB = 36, 8  # 6x6 Sudoku
MODELS = (
    ("mlp", 8),
    ("mlp", 16),
    ("mlp", 32),
    ("mlp", 64),
    ("mlp", 128),
    ("attention", 32),
    ("attention", 128),
)
SECONDS = 0.3
"""Of measurement for each model."""
MOST_CORES = 8
"""That are measured at once, as a study keeps all of them busy: beside others a core is slower."""


def random_rows(batch: int, cells: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Questions and answers, uint8 [batch, cells]."""
    rng = np.random.default_rng(0)
    inputs, labels = (
        torch.from_numpy(rng.integers(1, vocab, (batch, cells), dtype=np.uint8)) for _ in range(2)
    )
    return inputs, labels


def training_step(
    run: RunConfig, cells: int, vocab: int, backend: Backend, build: Any = None
) -> tuple[Callable[[], None], TrainState]:
    """A closure that takes one training step on random puzzles; `build`: another network than the backend's."""
    precision = backend.precision(run.training.precision)
    state = TrainState(run, Sizes(cells, vocab, 1, 0), precision, backend)
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
    program = TrainStep(state, originals, backend, build) if build else program_of(state, originals, backend)
    return lambda: program(Batch(*map(backend.place, rows)), Recursion.of(run.model)), state


def measure(mixer: str, d_model: int, seconds: float = SECONDS) -> Speed:
    """Train a model of the laptop study on one thread for about `seconds`, after one step of warm-up."""
    fields = {
        "mixer": mixer, "position": "rope" if mixer == "attention" else "none", "d_model": d_model, "heads": 4,
        "layers": 1, "h_cycles": 1, "l_cycles": 2, "halt_max_steps": 8, "puzzle_tokens": 1, "expansion": 1.0,
        "multiple": 8,
    }  # fmt: skip
    model = ModelConfig.model_validate(fields)
    run = RunConfig(model=model, training=TrainingConfig(batch_size=32, steps=1000, precision="auto"))
    step, _ = training_step(run, CELLS, VOCAB, open_backend("cpu", 1))
    step()
    taken, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or not taken:
        step()
        taken += 1
    return Speed(mixer, d_model, taken * run.training.batch_size * step_flops(model, CELLS, VOCAB), spent)


def measure_all(_: int = 0) -> list[Speed]:
    """Measure every model of MODELS."""
    return [measure(*model) for model in MODELS]


def main() -> None:
    functions()  # builds the kernel
    cores = min(threads(), MOST_CORES)
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Pool(cores) as pool:
        found = pool.map(measure_all, range(cores), chunksize=1)
    speeds = [
        Speed(*model, sum(speed.flops for speed in same), sum(speed.seconds for speed in same))
        for model, same in zip(MODELS, zip(*found, strict=True), strict=True)
    ]
    write(speeds)
    shown = next(speed for speed in speeds if speed[:2] == ("mlp", 64))
    print(
        f"A core of this machine trains at {flops_text(shown.flops / shown.seconds)}/s (6x6 Sudoku, d_model 64)"
    )


if __name__ == "__main__":
    main()
