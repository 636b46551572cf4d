"""The CUDA backend: one process per GPU, workers over NCCL, steps as two CUDA graphs if possible.

After a few warm-up steps the two halves of a step, before and after the workers' sum, are captured, compared with an
uncaptured step, and replayed from then on (TRM_CUDA_GRAPH=0 starts kernels one by one). Nothing in a step waits for the
host, and what the host draws (rows, augmentations, exploration) is copied into the captured batch. If triton is
installed, the faster of our kernels and torch.compile computes the network (`trm.training.choice`).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trm.backends.base import Backend, Precision, precision_of, switch
from trm.backends.cuda.gpus import claim, why_no_gpu
from trm.backends.workers import Workers, world_from_environment
from trm.errors import UserError

if TYPE_CHECKING:
    from trm.training.step import AnyBatch, TrainStep

log = logging.getLogger("trm")
GRAPH_VARIABLE, TRITON_VARIABLE = "TRM_CUDA_GRAPH", "TRM_TRITON"
WARM_UP_STEPS = 3  # steps before capture, which allocate all buffers and select all kernels
LARGEST_DIFFERENCE = 0.05  # of a replay from an eager step, relative to what the step changes
Call = Callable[[], None]
Capture = Callable[[Call, Call], tuple[Call, Call]]


class CudaBackend(Backend):
    """One NVIDIA GPU."""

    name = "cuda"
    stop_every = 10

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            reason = why_no_gpu(torch.__version__, torch.version.cuda)
            raise UserError(f"backend cuda: {reason}; or choose the backend cpu")
        self.rank, self.world = world_from_environment()
        self.device = torch.device("cuda", self._own_gpu())
        torch.cuda.set_device(self.device)
        sum_in_float32()
        self.candidates = candidates(torch.cuda.get_device_capability(self.device))
        self.network = self.candidates[0]
        self.workers = Workers("nccl", self.rank, self.world) if self.world > 1 else None

    def _own_gpu(self) -> int:
        """Claim a GPU that no other trm process uses. Raises UserError."""
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if count == 1:
            local = 0  # the launcher shows each worker its own GPU
        if local >= count:
            raise UserError(
                f"worker {local} of this machine has no GPU: there are {count}, so start {count} workers"
            )
        names = [f"gpu-{torch.cuda.get_device_properties(k).uuid}" for k in range(count)]
        index, shared = claim(names, local)
        if shared and self.world > 1:
            raise UserError(
                "other trm processes use the GPUs of this machine: wait for them, or start fewer workers"
            )
        if shared:
            log.warning("other trm processes use every GPU of this machine; this one shares GPU %d", index)
        return index

    def precision(self, requested: str) -> Precision:
        fast = torch.cuda.get_device_capability(self.device)[0] >= 8
        return precision_of(requested, fast, "this GPU")

    def place(self, tensor: Tensor) -> Tensor:
        # from pinned memory the host does not wait for the copy
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def program(self, step: TrainStep) -> Callable[..., None]:
        return step if os.environ.get(GRAPH_VARIABLE) == "0" else GraphedStep(step, capture_graphs)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def memory_limit(self) -> int:
        return torch.cuda.get_device_properties(self.device).total_memory


def sum_in_float32() -> None:
    """Have cuBLAS, which splits products over their rows, sum the parts in float32, not in 16 bits."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def candidates(capability: tuple[int, int]) -> tuple[str, ...]:
    """The implementations to time: our kernels and torch.compile, both of which need triton and compute capability 8.0;
    TRM_TRITON=1 takes the kernels untimed, 0 plain PyTorch."""
    wanted = switch(TRITON_VARIABLE)
    if wanted == "0" or capability < (8, 0) or not find_spec("triton"):
        return ("plain",)
    return ("triton",) if wanted == "1" else ("triton", "compiled")


class GraphedStep:
    """A training step whose kernels are captured once for each (h_cycles, l_cycles) and then replayed.

    The step changes its state in place and reads a batch of fixed shapes, so a replay on the same memory is a step. Its
    two halves are captured separately: the sum over the workers between them is never part of a graph. The first steps
    of each kind run eagerly. The first replay is compared with an eager step from the same state. If it differs, or if
    the capture fails, a warning is logged and this worker's steps run eagerly; others may replay, because each step
    communicates once either way.

    Args:
        capture: captures two functions, which run in this order, and returns the functions that replay them.
    """

    def __init__(self, step: TrainStep, capture: Capture):
        self._step, self._capture = step, capture
        self._seen: dict[tuple[int, int], int] = {}
        self._replays: dict[tuple[int, int], tuple[Call, Call]] = {}
        self._batch: AnyBatch | None = None
        self._given_up = False

    def __call__(self, batch: AnyBatch, h_cycles: int, l_cycles: int) -> None:
        kind = (h_cycles, l_cycles)
        if self._given_up or self._seen.get(kind, 0) < WARM_UP_STEPS:
            self._seen[kind] = self._seen.get(kind, 0) + 1
            self._step(batch, h_cycles, l_cycles)
            return
        if self._batch is None:
            self._batch = type(batch)(*(tensor.clone() for tensor in batch))
        for mine, theirs in zip(self._batch, batch, strict=True):
            mine.copy_(theirs)
        if kind not in self._replays:
            problem = self._record(kind, self._batch)
            if problem:
                self._given_up = True
                self._replays.clear()
                log.warning("the training step runs without a CUDA graph: %s", problem)
            return  # the step has been taken
        gradients, update = self._replays[kind]
        gradients()
        self._step.exchange()
        update()

    def _record(self, kind: tuple[int, int], batch: AnyBatch) -> str | None:
        """Take an eager step, capture, and compare a replay from the same state; returns a problem or None."""
        step, tensors = self._step, self._step.state.changed_tensors()
        before = [tensor.clone() for tensor in tensors]
        step.gradients(batch, *kind)
        own = step.state.reduce.clone()
        step.exchange()
        total = step.state.reduce.clone()
        step.update()
        after = [tensor.clone() for tensor in tensors]

        def back_to(values: list[Tensor]) -> None:
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)

        try:
            gradients, update = self._capture(lambda: step.gradients(batch, *kind), step.update)
            back_to(before)
            gradients()
            error = _relative(step.state.reduce, own, torch.zeros_like(own))
            # the workers communicate once a step, whether this succeeds or not
            step.state.reduce.copy_(total)
            update()
            errors = (_relative(t, new, old) for t, new, old in zip(tensors, after, before, strict=True))
            error = max(error, *errors)
        except RuntimeError as problem:
            back_to(after)
            return f"capture failed ({str(problem).splitlines()[0]})"
        back_to(after)
        if not error < LARGEST_DIFFERENCE:
            return f"a replay computes other values (relative difference {error:.1e})"
        self._replays[kind] = gradients, update
        return None


def _relative(actual: Tensor, expected: Tensor, before: Tensor) -> float:
    """Distance of a tensor from its expected value, relative to the length of the step; infinity for NaN."""
    if not actual.is_floating_point():
        actual, expected, before = actual.float(), expected.float(), before.float()
    if not actual.numel():
        return 0.0
    if torch.equal(actual, expected):
        return 0.0
    length = torch.linalg.vector_norm((expected - before).float())
    error = float(torch.linalg.vector_norm((actual - expected).float()) / length.clamp(min=1e-20))
    return error if math.isfinite(error) else math.inf


def capture_graphs(first: Call, second: Call) -> tuple[Call, Call]:
    """Capture two functions as CUDA graphs. They share memory, because they run one after the other.

    Only errors of this thread end a capture: NCCL's watchdog thread queries the driver meanwhile.
    """
    torch.cuda.synchronize()
    graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graphs[0], capture_error_mode="thread_local"):
        first()
    with torch.cuda.graph(graphs[1], pool=graphs[0].pool(), capture_error_mode="thread_local"):
        second()
    return graphs[0].replay, graphs[1].replay
