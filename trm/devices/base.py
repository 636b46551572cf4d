"""The interface between the engine and a device.

The engine runs one training step for every backend: static shapes, no data-dependent branch, state updated in
place. A backend decides where tensors live, how the step is compiled, how workers sum a vector, and which dtype is
fast. A step is `program(step)(batch, h_cycles, l_cycles)`; nothing it returns is read, results come from `fetch`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trm.devices.tpu_metrics import Use
from trm.devices.workers import Workers
from trm.errors import UserError


class Precision(NamedTuple):
    """The dtypes of a run, and why."""

    name: str
    """float32, bfloat16, float16 or bfloat16_weights."""
    forward: torch.dtype
    """Dtype of activations and matrix products."""
    weights: torch.dtype
    """Dtype in which the optimiser holds the weights."""
    scaled: bool
    """Whether the loss is scaled dynamically."""
    reason: str


def switch(variable: str) -> str:
    """An environment variable's value: 0, 1, or auto if it is not set.

    Raises:
        UserError: it has another value.
    """
    value = os.environ.get(variable, "auto")
    if value not in ("0", "1", "auto"):
        raise UserError(f"{variable}={value}: it must be 0, 1 or auto")
    return value


def precision_of(requested: str, fast_bfloat16: bool, device: str) -> Precision:
    """Resolve a TrainingConfig.precision for a device that is, or is not, fast at bfloat16."""
    reason = "requested"
    if requested == "auto":
        requested = "bfloat16" if fast_bfloat16 else "float32"
        reason = f"{device} {'has' if fast_bfloat16 else 'has no'} fast bfloat16 products"
    elif requested.startswith("bfloat16") and not fast_bfloat16:
        reason = f"requested, though {device} has no fast bfloat16 products"
    forward = {"float32": torch.float32, "float16": torch.float16}.get(requested, torch.bfloat16)
    weights = torch.bfloat16 if requested == "bfloat16_weights" else torch.float32
    return Precision(requested, forward, weights, requested == "float16", reason)


class State(Protocol):
    """What a step changes."""

    reduce: Tensor
    """The vector that `exchange` sums over the workers: made by `gradients`, read by `update`."""

    def changed_tensors(self) -> list[Tensor]:
        """All tensors that a step changes and the next one reads."""

    def row_axes(self) -> list[tuple[Tensor, int | None]]:
        """`changed_tensors`, each with its axis over batch rows; None: equal in all workers."""


class Step(Protocol):
    """A training step: changes its state in place and returns nothing. A call is gradients, exchange, update."""

    before_update: Callable[[], None]
    """Called when the state is about to change: until then a step may be abandoned."""

    @property
    def state(self) -> State:
        """What it changes."""

    def gradients(self, batch: Any, h_cycles: int, l_cycles: int) -> None:
        """All that comes before the workers communicate; changes no state."""

    def exchange(self) -> None:
        """Call `before_update`, then sum over the workers."""

    def update(self) -> None:
        """All that comes after it: changes the state."""

    def __call__(self, batch: Any, h_cycles: int, l_cycles: int) -> None: ...


class Backend(ABC):
    """One device as one worker of a job sees it."""

    name: str
    device: torch.device
    rank: int = 0
    """Index of this process among `processes`; rank 0 writes the files."""
    world: int = 1
    """Workers whose gradients `all_reduce` sums. Under SPMD 1: all devices of all hosts are one worker."""
    network: str = "plain"
    """Implementation of the network: a name of `trm.network.registry`."""
    network_note: str = ""
    """Why it is not the implementation that the device would have used; empty if it is."""
    chunk: int = 1 << 62
    """Elements of one pass of the optimiser."""
    own_memory: bool = True
    """Whether the device has its own memory, to which batches must be copied."""
    stop_every: int = 1
    """Steps between checks of the workers' stop requests (a check waits for the device)."""
    workers: Workers | None = None
    """The group of `processes`; None for a single one."""

    @property
    def worker(self) -> int:
        """Index of this worker among `world`: decides which rows of the global batch are its own."""
        return self.rank

    @property
    def processes(self) -> int:
        """Processes of the job, which `gather` and `broadcast` reach."""
        return self.world

    def device_count(self) -> int:
        """Devices of the job, over all its processes."""
        return self.world

    @abstractmethod
    def precision(self, requested: str) -> Precision:
        """The precision to compute in, with its reason in words."""

    @abstractmethod
    def place(self, tensor: Tensor) -> Tensor:
        """A host tensor, on the device. State goes through here once, each step's batch every step."""

    def place_rows(self, tensor: Tensor, dim: int) -> Tensor:
        """As `place`, for a tensor whose dimension `dim` runs over this worker's batch rows (SPMD shards it)."""
        return self.place(tensor)

    def program(self, step: Step) -> Callable[..., None]:
        """The step, compiled or as it is."""
        return step

    def all_reduce(self, flat: Tensor) -> None:
        """Sum `flat` over the workers, in place. Called once a step."""
        if self.workers:
            self.workers.all_reduce(flat)

    def request_stop(self, stop: Tensor, requested: int) -> None:
        """Put this process's stop request into the step's vector, before it is reduced."""
        stop.fill_(float(bool(requested)))

    def stop_agreed(self, stop: Tensor, step: int, requested: int) -> bool:
        """Whether all workers stop after this step. `stop`: the summed stop requests [1] of the step."""
        return bool(requested) if self.world == 1 else step % self.stop_every == 0 and bool(self.fetch(stop))

    def gather(self, vector: Tensor) -> list[Tensor]:
        """The host vectors (equal shape) of all workers, by rank; also a barrier."""
        return self.workers.gather(vector) if self.workers else [vector]

    def total(self, vector: Tensor) -> Tensor:
        """The sum of the workers' host vectors. Under SPMD every process holds the one worker's."""
        return torch.stack(self.gather(vector)[: self.world]).sum(0)

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a host tensor by rank 0's."""
        if self.workers:
            self.workers.broadcast(tensor)

    def fetch(self, tensor: Tensor) -> Tensor:
        """The tensor on the host, once all that it depends on has run."""
        return tensor.detach().to("cpu")

    def fetch_all(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """`fetch` for many tensors, contiguous. All processes call it: under SPMD it may run a program."""
        return {name: self.fetch(tensor).contiguous() for name, tensor in tensors.items()}

    def synchronize(self) -> None:  # noqa: B027 (a CPU has finished)
        """Wait for the device."""

    @abstractmethod
    def device_name(self) -> str:
        """The device's product name."""

    @abstractmethod
    def peak_memory(self) -> int:
        """Most bytes in use so far, of the device where it has its own memory, else of the process."""

    def peak_device_memory(self) -> int | None:
        """Most bytes in use so far on the device itself; None where it does not tell."""
        return self.peak_memory()

    def use(self) -> Use | None:
        """Memory in use and duty cycle of this process's devices; None where unknown."""
        return None

    def memory_limit(self) -> int:
        """Bytes of memory that a run may fill."""
        return 0

    def compilations(self) -> int:
        """Programs compiled so far in this process; 0 where steps run as they are."""
        return 0

    def compile_seconds(self) -> float:
        """Seconds spent so far in compiling them."""
        return 0.0

    def counters(self) -> dict[str, float]:
        """Columns of the history that only this backend has (xla/*)."""
        return {}

    def report(self) -> str:
        """Diagnostics of the device's runtime as text; empty where there are none."""
        return ""

    def start_trace(self, path: Path) -> Callable[[], Path]:
        """Start a profiler trace; the returned function stops it, writes it to `path` or beside it, and says where."""
        from torch.profiler import profile

        profiler = profile()
        profiler.start()

        def stop() -> Path:
            profiler.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
            return path

        return stop

    def close(self) -> None:
        """Leave the process group."""
        if self.workers:
            self.workers.close()
