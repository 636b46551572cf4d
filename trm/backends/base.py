"""The interface between the engine and a device.

A backend decides where tensors live, how workers sum a vector, which dtype is fast, what is measured of the device, and
which implementation of the network suits it. It knows nothing of training: `trm.training.programs` decides how a step
runs on it.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trm.backends.workers import Workers
from trm.errors import UserError


class Precision(NamedTuple):
    """The dtypes of a run, with a reason."""

    name: str
    """float32, bfloat16, float16 or bfloat16_weights."""
    forward: torch.dtype
    """Dtype of activations and matrix products."""
    weights: torch.dtype
    """Dtype of the weights in the optimiser."""
    scaled: bool
    """Whether the loss is scaled dynamically."""
    reason: str


class Use(NamedTuple):
    """Load of a process's devices; None where it is not reported."""

    hbm_bytes: int | None
    """In use on the fullest device."""
    hbm_total: int | None
    """Of one device."""
    duty_cycle: float | None
    """Percentage of the last sampling period in which they computed, mean over the devices."""

    def __str__(self) -> str:
        parts = []
        if self.hbm_bytes is not None and self.hbm_total:
            parts.append(f"HBM {self.hbm_bytes / 2**30:.1f} of {self.hbm_total / 2**30:.1f} GiB")
        if self.duty_cycle is not None:
            parts.append(f"duty cycle {self.duty_cycle:.0f} %")
        return ", ".join(parts)


def switch(variable: str) -> str:
    """An environment variable's value: 0, 1, or auto (the default). Raises UserError for others."""
    value = os.environ.get(variable, "auto")
    if value not in ("0", "1", "auto"):
        raise UserError(f"{variable}={value}: choose 0, 1 or auto")
    return value


def precision_of(requested: str, fast_bfloat16: bool, device: str) -> Precision:
    """Resolve `TrainingConfig.precision` for a device."""
    reason = "requested"
    if requested == "auto":
        requested = "bfloat16" if fast_bfloat16 else "float32"
        reason = f"{device} {'has' if fast_bfloat16 else 'has no'} fast bfloat16 products"
    elif requested.startswith("bfloat16") and not fast_bfloat16:
        reason = f"requested, though {device} has no fast bfloat16 products"
    forward = {"float32": torch.float32, "float16": torch.float16}.get(requested, torch.bfloat16)
    weights = torch.bfloat16 if requested == "bfloat16_weights" else torch.float32
    return Precision(requested, forward, weights, requested == "float16", reason)


class Backend(ABC):
    """A device from the view of one worker of a job."""

    name: str
    device: torch.device
    rank: int = 0
    """Index of this process among `processes`; rank 0 writes the files."""
    world: int = 1
    """Workers whose gradients `all_reduce` sums. 1 under SPMD, where all devices of all hosts are one worker."""
    implementation: str = "plain"
    """Of the network, a name in `trm.backends.registry`."""
    chunk: int = 1 << 62
    """Elements that the optimiser updates in one pass."""
    own_memory: bool = True
    """Whether the device has its own memory, into which batches are copied."""
    views: bool = True
    """Whether a part of a tensor can be written without a pass over all of it."""
    splits_batches: bool = True
    """Whether a batch that would not fit into memory is split into more micro-batches."""
    stop_every: int = 1
    """Steps between checks for stop requests of the workers; a check waits for the device."""
    workers: Workers | None = None
    """The group of `processes`; None for a single process."""

    @property
    def worker(self) -> int:
        """Index of this worker among `world`, which determines its rows of the global batch."""
        return self.rank

    @property
    def processes(self) -> int:
        """Processes of the job, the group of `gather` and `broadcast`."""
        return self.world

    def device_count(self) -> int:
        """Devices of the job, in all its processes."""
        return self.world

    @abstractmethod
    def precision(self, requested: str) -> Precision:
        """The precision to compute in."""

    @abstractmethod
    def place(self, tensor: Tensor) -> Tensor:
        """Copy a host tensor to the device: the state once, the batch at every step."""

    def place_rows(self, tensor: Tensor, dim: int) -> Tensor:
        """`place` for a tensor whose dimension `dim` is this worker's batch rows; SPMD shards it."""
        return self.place(tensor)

    def all_reduce(self, flat: Tensor) -> None:
        """Sum `flat` over the workers, in place. Called once a step."""
        if self.workers:
            self.workers.all_reduce(flat)

    def request_stop(self, stop: Tensor, requested: int) -> None:
        """Write this process's stop request into the step's vector before it is reduced."""
        stop.fill_(float(bool(requested)))

    def stop_agreed(self, stop: Tensor, step: int, requested: int) -> bool:
        """Whether all workers stop after this step; `stop` is the sum of their requests, [1]."""
        return bool(requested) if self.world == 1 else step % self.stop_every == 0 and bool(self.fetch(stop))

    def gather(self, vector: Tensor) -> list[Tensor]:
        """Host vectors of equal shape of all workers, by rank; also a barrier."""
        return self.workers.gather(vector) if self.workers else [vector]

    def total(self, vector: Tensor) -> Tensor:
        """Sum of the workers' vectors, on the host. Under SPMD every process has the vector of the one worker."""
        return torch.stack(self.gather(self.fetch(vector))[: self.world]).sum(0)

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a host tensor by rank 0's."""
        if self.workers:
            self.workers.broadcast(tensor)

    def fetch(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the host, waiting for the operations it depends on."""
        return tensor.detach().to("cpu")

    def fetch_all(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """`fetch` many tensors, contiguous. Called by all processes: under SPMD it may run a program."""
        return {name: self.fetch(tensor).contiguous() for name, tensor in tensors.items()}

    def synchronize(self) -> None:  # noqa: B027 (a CPU need not wait)
        """Wait for the device."""

    @abstractmethod
    def device_name(self) -> str:
        """The device's product name."""

    @abstractmethod
    def peak_memory(self) -> int:
        """Peak memory in bytes, of the device if it has its own memory, else of the process."""

    def peak_device_memory(self) -> int | None:
        """Peak memory of the device itself in bytes; None if unknown."""
        return self.peak_memory()

    def use(self) -> Use | None:
        """Memory in use and duty cycle of this process's devices; None if unknown."""
        return None

    def memory_limit(self) -> int:
        """Bytes of memory that a run may use; 0: unknown."""
        return 0

    def compilations(self) -> int:
        """Programs compiled so far in this process; 0 if the backend does not compile."""
        return 0

    def compile_seconds(self) -> float:
        """Seconds spent compiling them."""
        return 0.0

    def counters(self) -> dict[str, float]:
        """Columns of the history that only this backend has, such as xla/compilations."""
        return {}

    def report(self) -> str:
        """Diagnostics of the device's runtime as text; may be empty."""
        return ""

    def start_trace(self, path: Path) -> Callable[[], Path]:
        """Start a profiler trace. The returned function stops it, writes it to or near `path`, and returns where."""
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
