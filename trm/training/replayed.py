"""A training step as one XLA program, traced at its first call of each kind and run directly from then on."""

import warnings
from collections import Counter

import torch_xla
import torch_xla.distributed.spmd as spmd

from trm.backends.base import Backend, switch
from trm.backends.tpu.device import XlaBackend
from trm.backends.tpu.replay import Replay
from trm.model.act import Rows
from trm.study.stages import Recursion
from trm.training.state import TrainState
from trm.training.step import AnyBatch, TrainStep

REPLAY_VARIABLE = "TRM_XLA_REPLAY"
SETTLED = 5  # calls of a step after which another compilation is a fault


class ReplayedStep(TrainStep):
    """A training step as one XLA program, traced once and replayed. Warns once if a late call compiles again.
    TRM_XLA_REPLAY=0 traces every call."""

    backend: XlaBackend

    def __init__(self, state: TrainState, originals: Rows, backend: Backend):
        super().__init__(state, originals, backend)
        assert isinstance(backend, XlaBackend)
        self._calls: Counter[tuple[object, ...]] = Counter()
        self._replays: dict[tuple[object, ...], Replay] = {}
        self._replayed = switch(REPLAY_VARIABLE) != "0"

    def __call__(self, batch: AnyBatch, recursion: Recursion) -> None:
        before, kind = self.backend.compilations(), (type(batch), recursion)
        if not self._replayed:
            # changes between steps (reset metrics, a loaded checkpoint) must not become part of the step's graph
            torch_xla.sync()
            self.trace(batch, recursion)
            torch_xla.sync()
        elif kind in self._replays:
            self.before_update()  # a running program cannot be stopped
            self._replays[kind].run(batch)
        else:
            changed = self.state.changed_tensors()
            self._replays[kind] = Replay(lambda: self.trace(batch, recursion), changed, batch)
        self._calls[kind] += 1
        if self.backend.compilations() > before and self._calls[kind] > SETTLED:
            self._say_late(self._calls[kind])

    def trace(self, batch: AnyBatch, recursion: Recursion) -> None:
        """Trace the step, and mark the tensors that it has changed: the carry sharded by rows, everything else
        replicated.

        Otherwise the partitioner may return sharded weights, which the next step's program does not accept.
        """
        super().__call__(batch, recursion)
        axes = [(tensor, axis) for tensor, axis in self.state.row_axes() if tensor.dim()]
        changed = torch_xla._XLAC._check_tensor_need_materialization([tensor for tensor, _ in axes])
        for (tensor, axis), new in zip(axes, changed, strict=True):
            if new:
                spec = tuple("data" if at == axis else None for at in range(tensor.dim()))
                spmd.mark_sharding(tensor, self.backend.mesh, spec)

    def _say_late(self, call: int) -> None:
        self.backend.late_compilations += 1
        if self.backend.late_compilations == 1:
            warnings.warn(
                f"XLA compiled the training step again at call {call}: something in it changes from step to step and "
                "costs minutes each time (see the torch_xla metrics report)",
                RuntimeWarning,
                stacklevel=3,
            )
