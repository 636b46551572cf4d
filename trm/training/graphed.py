"""A training step as two CUDA graphs, captured after a few steps and replayed from then on.

Nothing in a step waits for the host, and what the host draws (rows, augmentations, exploration) is copied into the
captured batch.
"""

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

from trm.backends.base import Backend
from trm.model.act import Rows
from trm.study.stages import Recursion
from trm.training.state import TrainState
from trm.training.step import AnyBatch, TrainStep

log = logging.getLogger("trm")
WARM_UP_STEPS = (
    3  # steps before capture, which allocate all buffers, compile the network and select all kernels
)
LARGEST_DIFFERENCE = 0.05  # of a replay from an eager step, relative to what the step changes
Call = Callable[[], None]
Capture = Callable[[Call, Call], tuple[Call, Call]]


class GraphedStep(TrainStep):
    """A training step whose CUDA kernels are captured once for each recursion and then replayed.

    The step changes its state in place and reads a batch of fixed shapes, so a replay on the same memory is a step. Its
    two halves are captured separately: the sum over the workers between them is never part of a graph. The first steps
    of each kind run eagerly. The first replay is compared with an eager step from the same state. If it differs, or if
    the capture fails, a warning is logged and this worker's steps run eagerly; others may replay, because each step
    communicates once either way.

    Args:
        capture: captures two functions, which run in this order, and returns the functions that replay them.
    """

    def __init__(self, state: TrainState, originals: Rows, backend: Backend, capture: Capture):
        super().__init__(state, originals, backend)
        self._capture = capture
        self._seen: dict[Recursion, int] = {}
        self._replays: dict[Recursion, tuple[Call, Call]] = {}
        self._batch: AnyBatch | None = None
        self._given_up = False

    def __call__(self, batch: AnyBatch, recursion: Recursion) -> None:
        if self._given_up or self._seen.get(recursion, 0) < WARM_UP_STEPS:
            self._seen[recursion] = self._seen.get(recursion, 0) + 1
            super().__call__(batch, recursion)
            return
        if self._batch is None:
            self._batch = type(batch)(*(tensor.clone() for tensor in batch))
        for mine, theirs in zip(self._batch, batch, strict=True):
            mine.copy_(theirs)
        if recursion not in self._replays:
            problem = self._record(recursion, self._batch)
            if problem:
                self._given_up = True
                self._replays.clear()
                log.warning("the training step runs without a CUDA graph: %s", problem)
            return  # the step has been taken
        gradients, update = self._replays[recursion]
        gradients()
        self.exchange()
        update()

    def _record(self, recursion: Recursion, batch: AnyBatch) -> str | None:
        """Take an eager step, capture, and compare a replay from the same state; returns a problem or None."""
        tensors, (reduce,) = self.state.changed_tensors(), self.state.reduced
        before = [tensor.clone() for tensor in tensors]
        self.gradients(batch, recursion)
        own = reduce.clone()
        self.exchange()
        total = reduce.clone()
        self.update()
        after = [tensor.clone() for tensor in tensors]

        def back_to(values: list[Tensor]) -> None:
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)

        try:
            gradients, update = self._capture(lambda: self.gradients(batch, recursion), self.update)
            back_to(before)
            gradients()
            error = _relative(reduce, own, torch.zeros_like(own))
            # the workers communicate once a step, whether this succeeds or not
            reduce.copy_(total)
            update()
            errors = (_relative(t, new, old) for t, new, old in zip(tensors, after, before, strict=True))
            error = max(error, *errors)
        except RuntimeError as problem:
            back_to(after)
            return f"capture failed ({str(problem).splitlines()[0]})"
        back_to(after)
        if not error < LARGEST_DIFFERENCE:
            return f"a replay computes other values (relative difference {error:.1e})"
        self._replays[recursion] = gradients, update
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
