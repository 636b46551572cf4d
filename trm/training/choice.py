"""Which implementation computes a run's network, where the device leaves the choice: the faster one is timed and kept.

The first run of a shape on a device times whole training steps of each candidate, recorded as the backend records them.
The verdict is kept by device, versions and shape, and the checkpoint names it, so a resumed run continues alike.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from typing import Any

import torch

from trm.backends.base import Backend, Precision
from trm.backends.cuda.self_check import check_kernels
from trm.errors import UserError
from trm.io import read_json, write_json
from trm.provenance import versions
from trm.storage.cache import default_folder
from trm.study.schema import RunConfig
from trm.training.dataset import Dataset
from trm.training.feed import Feed
from trm.training.kernel_step import make_step
from trm.training.state import TrainState

log = logging.getLogger("trm")
WARM_UP_STEPS = 5  # compile, allocate, record the step
TIMED_STEPS = 20
clock = time.perf_counter


def choose_network(
    backend: Backend, config: RunConfig, dataset: Dataset, precision: Precision, resumed: str | None
) -> None:
    """Set `backend.network` and say why in `backend.network_note`.

    Args:
        resumed: the network that the checkpoint names; None: the run starts.
    """
    check_kernels(backend, config.model, dataset.puzzles.seq_len, precision.forward)
    names = backend.candidates
    if backend.network not in names or len(names) == 1:  # the kernels are wrong, or the user has chosen
        return
    if resumed in names:
        backend.network, backend.network_note = resumed, "as in the checkpoint"
        return
    path = default_folder() / "networks" / f"{_key(backend, config, dataset, precision)}.json"
    known = torch.full((len(names),), math.nan, dtype=torch.float64)
    if backend.rank == 0:
        known = torch.tensor(_read(path, names), dtype=torch.float64)
    backend.broadcast(known)
    seconds = dict(zip(names, known.tolist()))
    if not all(value > 0 for value in seconds.values()):
        own = torch.tensor([_time(backend, name, config, dataset, precision) for name in names]).double()
        seconds = dict(zip(names, backend.total(own).tolist()))  # alike on all workers
    backend.network = min(names, key=seconds.__getitem__)
    if math.isinf(seconds[backend.network]):
        raise UserError("no implementation of the network runs on this device: see the messages above")
    backend.network_note = _sentence(backend.network, seconds, backend.world)
    if backend.rank == 0:
        print(f"network: {backend.network_note}", flush=True)
        finite = {name: value if math.isfinite(value) else 1e9 for name, value in seconds.items()}
        write_json(path, {"device": backend.device_name(), "seconds": finite})


def _sentence(chosen: str, seconds: dict[str, float], workers: int) -> str:
    times = ", ".join(
        f"{name} {value / workers / TIMED_STEPS * 1e3:.3g} ms" for name, value in seconds.items()
    )
    slowest = max(seconds.values())
    return f"{chosen}, {slowest / seconds[chosen]:.2f} times as fast as the slowest (a step takes {times})"


def _key(backend: Backend, config: RunConfig, dataset: Dataset, precision: Precision) -> str:
    training = config.training
    shape: list[Any] = [config.model.model_dump(), list(dataset.puzzles), training.batch_size, backend.world]
    shape += [training.micro_batches, precision.name, training.optimizer, backend.candidates]
    text = json.dumps([backend.device_name(), versions(), shape], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Any, names: tuple[str, ...]) -> list[float]:
    try:
        return [float(read_json(path)["seconds"][name]) for name in names]
    except (UserError, KeyError, TypeError, ValueError):
        return [math.nan] * len(names)


def _time(backend: Backend, name: str, config: RunConfig, dataset: Dataset, precision: Precision) -> float:
    """Seconds of the timed steps on a state of its own; infinity if it does not run."""
    backend.network = name
    steps = max(config.training.steps, WARM_UP_STEPS + TIMED_STEPS)
    config = config.model_copy(update={"training": config.training.model_copy(update={"steps": steps})})
    try:
        state = TrainState(config, dataset.puzzles, precision, backend)
        state.initialise(backend)
        program = backend.program(make_step(state, dataset.originals("train", backend), backend))
        batch = Feed(config, dataset, backend).batch(1)
        cycles = config.model.h_cycles, config.model.l_cycles
        started = 0.0
        for step in range(WARM_UP_STEPS + TIMED_STEPS):
            if step == WARM_UP_STEPS:
                backend.synchronize()
                started = clock()
            program(batch, *cycles)
        backend.synchronize()
        return clock() - started
    except RuntimeError as error:  # the compiler's or the driver's
        log.warning("the network %s does not run here: %s", name, str(error).splitlines()[0])
        return math.inf
