"""Checks that train a tiny model (data shards, gradients, falling loss, resuming), and the list of all checks."""

import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trm.backends.base import Backend
from trm.backends.cpu.device import CpuBackend
from trm.checks.preflight import machine
from trm.checks.preflight.report import Check, Site
from trm.errors import UserError
from trm.study.schema import DataConfig, RunConfig
from trm.study.stages import Recursion
from trm.study.text import count
from trm.tasks.build import build_dataset, build_source
from trm.training.dataset import Dataset
from trm.training.feed import Feed
from trm.training.metrics import named_means
from trm.training.programs import program_of
from trm.training.state import TrainState

BATCH = 32
PUZZLES = 64
FALLEN = 0.9  # the loss over the last tenth of the trial must be below this fraction of the first tenth's
MORE_STEPS = 5  # after saving and loading
DATA: dict[str, Any] = {
    "source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8, "train_puzzles": PUZZLES,
    "augmentations": 0, "validation_puzzles": 8, "test_puzzles": 8,
}  # fmt: skip


class HostReference(CpuBackend):
    """The CPU of this process alone, whatever the job runs on."""

    def __init__(self) -> None:
        self.device, self.rank, self.world = torch.device("cpu"), 0, 1


class Trial:
    """A tiny run on one backend."""

    def __init__(self, site: Site, backend: Backend):
        self.backend, self.run, self.dataset = backend, trial_config(site), trial_data(site)
        self.state = TrainState(self.run, self.dataset.puzzles, backend.precision("float32"), backend)
        self.state.initialise(backend)
        originals = self.dataset.originals("train", backend)
        self.program = program_of(self.state, originals, backend)
        self.feed = Feed(self.run, self.dataset, backend)

    def step(self, number: int) -> float:
        """Train step `number` (from 1) and return its loss."""
        self.program(self.feed.batch(number), Recursion.of(self.run.model))
        sums = self.backend.fetch(self.state.meter.sums).tolist()
        self.state.meter.sums.zero_()
        loss = named_means(sums, 1, BATCH)["train/lm_loss"]
        assert loss is not None
        return loss

    def gradient(self) -> Tensor:
        """The flat gradient of the first step, summed over the workers, on the host; nothing is updated."""
        self.program.gradients(self.feed.batch(1), Recursion.of(self.run.model))
        self.program.exchange()
        return self.state.fetched(self.state.grads, self.backend)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, on the host."""
        shared, carry = self.state.on_host(self.backend, carry=True)
        named = shared | {f"carry.{name}": tensor for name, tensor in (carry or {}).items()}
        return {name: tensor.clone() for name, tensor in named.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self.state.load_shared(tensors, self.backend)
        carry = {n.removeprefix("carry."): t for n, t in tensors.items() if n.startswith("carry.")}
        self.state.load_carry(carry, self.backend)


def trial_config(site: Site) -> RunConfig:
    """A run of about a second on generated 4x4 Sudoku."""
    model = {"d_model": 32, "h_cycles": 2, "l_cycles": 2, "halt_max_steps": 4, "puzzle_tokens": 1}
    training: dict[str, Any] = {
        "batch_size": BATCH,
        "steps": site.steps + MORE_STEPS,
        "warmup_steps": 5,
        "lr": site.learning_rate,
    }
    training |= {"precision": "float32", "weight_decay": 0.1}
    return RunConfig.model_validate({"model": model, "data": DATA, "training": training})


def trial_data(site: Site) -> Dataset:
    """The trial's data set, built once."""
    if "data" not in site.shared:
        folder = Path(tempfile.mkdtemp(prefix="trm-preflight-"))
        try:
            config = DataConfig.model_validate(DATA)
            build_source(config, folder / "source")
            build_dataset(config, folder / "source", folder / "data")
            dataset = Dataset(folder / "data")
            dataset.split("train")  # read before the folder is removed
            site.shared["data"] = dataset
        finally:
            shutil.rmtree(folder)
    data: Dataset = site.shared["data"]
    return data


def shards(site: Site) -> str:
    """The workers' rows are disjoint parts of one global batch."""
    backend = site.opened
    sampler = trial_data(site).sampler(trial_config(site))[0]
    worlds = sorted({2, 4, 8, backend.world})
    for step in range(3):
        whole = sampler.batch(step, 0, 1).rows
        for world in worlds:
            if BATCH % world:
                continue
            parts = np.concatenate([sampler.batch(step, worker, world).rows for worker in range(world)])
            if not np.array_equal(parts, whole):
                raise UserError(
                    f"the rows of {world} workers at step {step + 1} do not make up one batch: some puzzles would "
                    "count twice; this is a bug in the sampler"
                )
    local = torch.from_numpy(sampler.batch(0, backend.worker, backend.world).rows)
    gathered = backend.gather(local)[: backend.world]
    if not np.array_equal(torch.cat(gathered).numpy(), sampler.batch(0, 0, 1).rows):
        raise UserError(
            "the processes' first rows do not make up one batch: their seeds, data or ranks differ"
        )
    return f"{', '.join(map(str, worlds))} workers take disjoint rows of one batch"


def gradients(site: Site) -> str:
    """All workers hold the same gradient, that of the global batch."""
    backend = site.opened
    gradient, expected = Trial(site, backend).gradient(), Trial(site, HostReference()).gradient()
    error = float((gradient - expected).norm() / expected.norm())
    if not error < 1e-3:
        raise UserError(
            f"the gradient differs from the one-process gradient by {100 * error:.3g} %: the workers' sum is wrong"
        )
    checksum = torch.tensor([zlib.crc32(gradient.contiguous().numpy().tobytes())])
    checksums = [int(other) for other in backend.gather(checksum)]
    if len(set(checksums)) > 1:
        raise UserError(
            f"the processes hold different gradients ({checksums}): the link between them is faulty"
        )
    where = count(backend.processes, "process", "processes")
    return f"same gradient in {where}, within {error:.1e} of the one-process gradient"


def training(site: Site) -> str:
    """The loss falls during a short training."""
    trial = Trial(site, site.opened)
    losses = [trial.step(number) for number in range(1, site.steps + 1)]
    site.shared["trial"] = trial
    tenth = max(1, site.steps // 10)
    first, last = (sum(part) / tenth for part in (losses[:tenth], losses[-tenth:]))
    if not last < FALLEN * first:
        raise UserError(
            f"the loss went from {first:.3f} to {last:.3f} in {site.steps} steps. A fall by at least 10 % is expected: "
            "check again, and do not use this machine if that fails too"
        )
    return f"loss {first:.3f} to {last:.3f} in {site.steps} steps"


def resume(site: Site) -> str:
    """Training resumed from a saved state continues like uninterrupted training."""
    backend, trial = site.opened, site.shared.get("trial")
    if trial is None:
        raise UserError("not checked: the training check failed")
    with tempfile.TemporaryDirectory(prefix="trm-preflight-", dir=site.scratch) as folder:
        file = Path(folder) / "state.safetensors"
        save_file(trial.tensors(), file)
        again = Trial(site, backend)
        again.load(load_file(file))
    numbers = range(site.steps + 1, site.steps + 1 + MORE_STEPS)
    expected, actual = ([one.step(number) for number in numbers] for one in (trial, again))
    ours, theirs = (one.state.fetched(one.state.params, backend) for one in (trial, again))
    error = float((ours - theirs).norm() / ours.norm())
    if not error <= (1e-4 if backend.name == "cuda" else 0.0):  # GPU sums have no fixed order
        raise UserError(
            f"the weights of resumed training differ from uninterrupted training by {100 * error:.2g} % after "
            f"{MORE_STEPS} steps (losses {expected[-1]:.6f} and {actual[-1]:.6f}): checkpoints cannot be trusted here"
        )
    return f"{MORE_STEPS} steps after saving and loading equal {MORE_STEPS} uninterrupted steps"


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        *(machine.versions, machine.devices, machine.arithmetic, machine.memory, machine.disk),
        *(machine.bucket, machine.clock, shards, gradients, training, resume),
    )
}
"""All checks, in the order in which they run."""
