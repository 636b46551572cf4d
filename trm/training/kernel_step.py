"""The training step by the CPU kernel: one call for the gradients of a micro-batch, one for the update."""

import math
from contextlib import nullcontext
from ctypes import byref

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from trm.backends.base import Backend
from trm.backends.cpu import library
from trm.backends.cpu.library import address
from trm.backends.cpu.network import Incoming, Results, Settings, Supervision
from trm.model.act import Carry, Rows, empty_carry
from trm.model.parameters import Rates
from trm.study.stages import Recursion
from trm.training.metrics import INDEX, SUMS
from trm.training.optim import flat
from trm.training.optim.schedule import lr_factor
from trm.training.state import TrainState
from trm.training.step import AnyBatch, HintBatch, RowBatch, TrainStep

OPTIMISERS = {"adam_atan2": 0, "adamw": 1, "lion": 2}
"""Those that the kernel has, by `training.optimizer`."""


class KernelStep(TrainStep):
    """A training step by the CPU kernel, without autograd. `products`: from `trm.backends.cpu.choice.products_for`."""

    def __init__(self, state: TrainState, originals: Rows, backend: Backend, products: int):
        super().__init__(state, originals, backend)
        config, rows = state.config, state.local_batch // state.micro
        training = config.training
        numbers = training.batch_size, training.halting_cost, state.puzzles.ignore
        settings = Settings(*numbers, state.h_init, state.l_init, state.puzzle_table)
        buffers = (state.layout, state.params, state.grads)
        length, _, width = state.carries[0].z_H.shape
        self._supervision = Supervision(*buffers, state.arch, (length, rows), settings, products)
        sizes = length, width, state.puzzles.seq_len, rows, state.arch.dtype
        self._spare = [empty_carry(*sizes) for _ in state.carries]
        # one table for all steps is cheaper than a dozen small operations in each
        steps = torch.arange(1.0, training.steps + 1)
        factors = lr_factor(steps, training.warmup_steps, training.steps, training.lr_min_ratio)
        self._factors: list[float] = factors.tolist()
        rates = flat.optimiser(training).rates(training, steps, factors * training.lr)
        self._rates = torch.stack(rates).t().tolist()
        metrics = state.step_metrics
        self._results = Results(metrics[: library.RESULTS], metrics[len(SUMS) :])
        # NumPy's operations on a few numbers take a third of the time of torch's
        shared = metrics, state.meter.sums, state.local_norm, state.step, state.ema_steps
        self._metrics, self._sums, self._norm, self._step, self._ema_steps = (each.numpy() for each in shared)
        table, gradient = state.puzzle_table, state.puzzle_grads
        self._puzzle = (table.numpy(), gradient.numpy()) if table is not None and len(table) == 1 else None
        self._ema = state.ema if state.averages else None
        flat_buffers = state.params, *state.moments, self._ema, state.grads
        kind = OPTIMISERS.get(training.optimizer, -1)
        constants = kind, training.beta1, training.beta2, 0, 0, 0, training.ema
        self._elementwise = library.Update(*constants, *map(address, flat_buffers))

    def gradients(self, batch: AnyBatch, recursion: Recursion) -> None:
        self._supervision.prepare(recursion.l_cycles)
        for tensor in self.state.reduced:
            tensor.zero_()
        self._each_micro_batch(batch, recursion)

    def update(self) -> None:
        self._update()
        self._spare, self.state.carries = self.state.carries, self._carries
        self._carries = []

    def _micro_batch(self, k: int, slots: Carry, batch: AnyBatch, recursion: Recursion) -> Carry:
        following = self._spare[k]
        if isinstance(batch, RowBatch):
            incoming = Incoming(Rows(batch.inputs, batch.labels, batch.puzzle), batch.minimum)
        else:
            hints = (batch.order, batch.hints) if isinstance(batch, HintBatch) else None
            maps = batch.original, batch.token_map, batch.cell_map
            incoming = Incoming(self.originals, batch.minimum, maps, hints)
        # without a profiler it would cost 3 % of a small step
        profiling = torch._C._autograd._profiler_enabled()
        with record_function("supervision step") if profiling else nullcontext():
            puzzle_grads, norm = self._supervision(slots, following, incoming, recursion, self._results)
        self._norm += norm
        if self.state.puzzle_table is not None:
            self._collect_puzzle(k, following.rows.puzzle, puzzle_grads)
        return following

    def _update(self) -> None:
        state, training = self.state, self.state.config.training
        step = int(self._step) + 1
        squared = float(torch.dot(state.grads, state.grads))
        self._count(step, squared)
        if training.max_grad_norm is not None:
            state.grads.mul_(min(1.0, training.max_grad_norm / (math.sqrt(squared) + 1e-6)))
        rates = self._rates[step - 1]
        if training.optimizer in OPTIMISERS:
            update = self._elementwise
            update.keep, update.step_size, update.v_scale = rates[:3]
            library.functions().trm_update(byref(update), 0, state.layout.size)
        else:
            tensors, buffers = Rates(*map(torch.tensor, rates)), (state.params, state.grads, state.moments)
            flat.update(training, *buffers, self._ema, tensors, self.backend.chunk, state.layout)
        if state.puzzle_table is not None:
            lr = self._factors[step - 1] * (training.puzzle_lr or training.lr)
            self._update_puzzle(state.puzzle_table, lr)
        self._step[...] = step
        self._ema_steps += 1

    def _update_puzzle(self, table: Tensor, lr: Tensor | float) -> None:
        if self._puzzle is None:
            return super()._update_puzzle(table, lr)
        row, gradient = self._puzzle  # `update_dense` of one row
        row *= np.float32(1 - lr * self.state.config.training.puzzle_weight_decay)
        row -= np.sign(gradient) * np.float32(lr)

    def _count(self, step: int, squared: float) -> None:
        """Add one step's metrics to the sums, as `Meter.add` does on a device."""
        this, sums = self._metrics, self._sums
        loss = this[INDEX["lm_loss"]] + this[INDEX["halt_loss"]] + this[INDEX["cost_loss"]]
        sums += this
        sums[INDEX["steps"]] += 1
        sums[INDEX["grad_norm"]] += math.sqrt(squared)
        sums[INDEX["grad_norm_big"]] += squared
        sums[INDEX["grad_norm_small"]] += float(self._norm[0]) * self.state.micro * self.backend.world
        if not math.isfinite(loss + squared) and not sums[INDEX["bad_step"]]:
            sums[INDEX["bad_step"]], sums[INDEX["bad_loss"]] = step, not math.isfinite(loss)
