"""A tiny run that trains in a fraction of a second."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.training.puzzles import write_dataset
from trm.backends.cpu.device import CpuBackend
from trm.study.schema import RunConfig, RuntimeConfig
from trm.study.stages import stage_at
from trm.training.checkpoints.folder import CheckpointFolder
from trm.training.dataset import Dataset
from trm.training.loop import Trainer
from trm.training.metrics import INDEX
from trm.training.setup import check_placement

MODEL = {"d_model": 16, "heads": 2, "h_cycles": 2, "l_cycles": 1, "halt_max_steps": 4, "puzzle_tokens": 1}
DATA = {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_max": 8, "augmentations": 0}
TRAINING = {"batch_size": 16, "steps": 12, "lr": 1e-3, "warmup_steps": 4, "weight_decay": 0.1, "ema": 0.9}
TRAINING |= {"precision": "float32"}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Sums are made in the same order on every machine, and busy neighbours cannot stall a parallel region."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory) -> Path:
    """120 training, 24 validation and 40 test puzzles."""
    return write_dataset(tmp_path_factory.mktemp("data") / "small", 120, 24, 40)


def config(model=None, training=None, seed=0, data=None) -> RunConfig:
    """The tiny run with some fields changed."""
    sections = {"model": MODEL | (model or {}), "data": DATA | (data or {})}
    return RunConfig.model_validate(sections | {"training": TRAINING | (training or {}), "seed": seed})


def history(root: Path) -> list[dict[str, str]]:
    """The rows that a run has written."""
    return list(csv.DictReader((root / "run/history.csv").read_text().splitlines()))


def train_words(run: RunConfig, data: object, root: object, *more: str, **runtime) -> list[str]:
    """Arguments of `python -m trm` that train `run` to `root`/run and `root`/checkpoints."""
    words = ["train", "--config", run.model_dump_json(), "--dataset", str(data), "--out", f"{root}/run"]
    words += ["--checkpoints", f"{root}/checkpoints", "--threads", "1", "--runtime", json.dumps(runtime)]
    return [*words, *more]


def trainer(run: RunConfig, data: Path, root: Path, name: str = "run", initial=None, **runtime) -> Trainer:
    """A trainer of `run` with files below `root`."""
    settings = RuntimeConfig(**({"log_every": 4, "evals": 2} | runtime))
    folder = CheckpointFolder(root / "checkpoints" / name)
    (root / name).mkdir(parents=True, exist_ok=True)
    backend = CpuBackend()
    check_placement(run, backend)
    return Trainer(run, Dataset(data), root / name, folder, backend, settings, 0.0, initial)


def train(run: RunConfig, data: Path, root: Path, name: str = "run", **options) -> Trainer:
    """Train to the end."""
    found = trainer(run, data, root, name, **options)
    assert found.run() == 0
    return found


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same tensors, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def steps(found: Trainer, first: int, last: int) -> None:
    """Train these steps, without what a run does besides."""
    for step in range(first, last + 1):
        found.program(found.feed.batch(step), stage_at(found.stages, step).recursion)
        found.record.done = step


def first_losses(run: RunConfig, data: Path, root: Path, last: int, name: str = "run") -> list[float]:
    """Loss of each of the first steps."""
    found = trainer(run, data, root, name, log_every=1, evals=1)
    losses = []
    for step in range(1, last + 1):
        steps(found, step, step)
        sums, _, _ = found._fetch()
        losses.append(sum(sums[INDEX["lm_loss"] : INDEX["cost_loss"] + 1]))
        found.state.meter.sums.zero_()
    return losses


def after(found: Trainer, done: int, act: Callable[[], object]) -> Trainer:
    """Have a trainer call `act` as the step that follows `done` steps begins."""
    program = found.program

    def watched(*words: object) -> None:
        if found.record.done == done:
            act()
        program(*words)

    found.program = watched
    return found
