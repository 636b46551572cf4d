"""The CUDA backend: one process a GPU, workers over NCCL, optionally the whole step as one CUDA graph.

TRM_CUDA_GRAPH=1 replays a captured graph instead of starting kernels one by one (single worker): worth it where
kernels are short. It is off by default until it has been measured on a GPU (docs/training.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from trm.backends.base import Backend, Precision, precision_of
from trm.backends.workers import Workers, world_from_environment
from trm.errors import UserError

GRAPH_VARIABLE = "TRM_CUDA_GRAPH"
WARM_UP_STEPS = 3  # real steps before capture: they create every buffer and pick every kernel


class CudaBackend(Backend):
    """One NVIDIA GPU."""

    name = "cuda"
    network = "fused"
    stop_every = 10

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UserError(
                "--backend cuda: torch sees no GPU here; use --backend cpu, or install a CUDA build of torch"
            )
        self.rank, self.world = world_from_environment()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise UserError(f"LOCAL_RANK={local}, but this machine has {torch.cuda.device_count()} GPUs")
        self.device = torch.device("cuda", local)
        torch.cuda.set_device(self.device)
        self._workers = Workers("nccl", self.rank, self.world) if self.world > 1 else None

    def precision(self, requested: str) -> Precision:
        fast = torch.cuda.get_device_capability(self.device)[0] >= 8
        return precision_of(requested, fast, "this GPU")

    def place(self, tensor: Tensor) -> Tensor:
        # from pinned memory the copy runs beside the kernels of the step before
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def program(self, step: Callable[..., None]) -> Callable[..., None]:
        if self.world == 1 and os.environ.get(GRAPH_VARIABLE) == "1":
            return GraphedStep(step)
        return step

    def all_reduce(self, flat: Tensor) -> None:
        if self._workers:
            self._workers.all_reduce(flat)

    def gather(self, vector: Tensor) -> list[Tensor]:
        return self._workers.gather(vector) if self._workers else [vector]

    def broadcast(self, tensor: Tensor) -> None:
        if self._workers:
            self._workers.broadcast(tensor)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def memory_limit(self) -> int:
        return torch.cuda.get_device_properties(self.device).total_memory

    def close(self) -> None:
        if self._workers:
            self._workers.close()


class GraphedStep:
    """A training step whose kernels are recorded once for each (h_cycles, l_cycles) and then replayed.

    The step changes its state in place and reads a batch of fixed shapes, so a replay on the batch's own memory is
    a step. The first steps of each kind run as usual.
    """

    def __init__(self, step: Callable[..., None]):
        self._step = step
        self._seen: dict[tuple[int, int], int] = {}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._batch: tuple[Tensor, ...] | None = None

    def __call__(self, batch: tuple[Tensor, ...], h_cycles: int, l_cycles: int) -> None:
        kind = (h_cycles, l_cycles)
        if self._seen.get(kind, 0) < WARM_UP_STEPS:
            self._seen[kind] = self._seen.get(kind, 0) + 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step(batch, h_cycles, l_cycles)
            torch.cuda.current_stream().wait_stream(stream)
            return
        if self._batch is None:
            self._batch = type(batch)(*(tensor.clone() for tensor in batch))
        for mine, theirs in zip(self._batch, batch, strict=True):
            mine.copy_(theirs)
        if kind not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(self._batch, h_cycles, l_cycles)
            self._graphs[kind] = graph
        self._step.before_update()  # a launched replay cannot be broken off
        self._graphs[kind].replay()
