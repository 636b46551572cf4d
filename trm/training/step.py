"""One training step, the same for all backends: static shapes, no host transfers, state updated in place.

Shapes: B rows of this worker, L tokens, S cells, D width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.backends.base import Backend
from trm.backends.registry import load_implementation
from trm.model.act import Carry, Rows, halt, refill, with_noise
from trm.model.definition import Architecture
from trm.model.losses import expected_further_steps, halting_loss, judge
from trm.model.parameters import Buffer, Layout, squared_norm, tensors
from trm.study.stages import Recursion
from trm.training.metrics import INDEX
from trm.training.optim import flat, loss_scale, puzzle
from trm.training.optim.schedule import lr_factor
from trm.training.state import TrainState, flatten_carry


class Batch(NamedTuple):
    """A worker's rows of the global batch, as indices into the data set and augmentation maps."""

    original: Tensor
    """Index of the original puzzle, int32 [B]."""
    token_map: Tensor
    """The symbol that replaces each symbol, uint8 [B, V]."""
    cell_map: Tensor
    """The source cell of each cell, int16 [B, S]."""
    minimum: Tensor
    """Exploration's minimum number of steps, int32 [B]; 0: none."""


class HintBatch(NamedTuple):
    """A batch whose rows get extra clues: see `trm.data.hints`. The first four fields are those of `Batch`."""

    original: Tensor
    token_map: Tensor
    cell_map: Tensor
    minimum: Tensor
    order: Tensor
    """Order in which the original's cells are filled in, int16 [B, S]; S: never."""
    hints: Tensor
    """Hints per row, float32 [B]."""


class RowBatch(NamedTuple):
    """A batch that was augmented on the host (ARC: its maps would be larger than the rows)."""

    inputs: Tensor
    """uint8 [B, S]."""
    labels: Tensor
    """uint8 [B, S]."""
    puzzle: Tensor
    """Puzzle-table row, int32 [B]; every augmented task has its own."""
    minimum: Tensor
    """Exploration's minimum number of steps, int32 [B]; 0: none."""


AnyBatch = Batch | HintBatch | RowBatch


def transformed(originals: Rows, batch: AnyBatch) -> Rows:
    """The augmented rows of a batch: hints are filled into blank cells, cells permuted, symbols replaced. The rows of a
    RowBatch are augmented already."""
    if isinstance(batch, RowBatch):
        return Rows(batch.inputs, batch.labels, batch.puzzle)
    index, cells, symbols = batch.original.long(), batch.cell_map.long(), batch.token_map
    questions, answers = originals.inputs[index], originals.labels[index]
    if isinstance(batch, HintBatch):
        questions = torch.where(batch.order < batch.hints[:, None], answers, questions)

    def moved(grids: Tensor) -> Tensor:
        return torch.gather(symbols, 1, torch.gather(grids, 1, cells).long())

    return Rows(moved(questions), moved(answers), originals.puzzle[index])


class TrainStep:
    """One supervision step of every slot, then one optimiser step: a callable of (batch, recursion)."""

    def __init__(
        self,
        state: TrainState,
        originals: Rows,
        backend: Backend,
        build: Callable[[Layout, Buffer, Buffer, Architecture], Any] | None = None,
    ):
        self.state, self.originals, self.backend = state, originals, backend
        build = build or load_implementation(backend.implementation).network
        self.network = build(state.layout, state.params, state.grads, state.arch)
        self.before_update: Callable[[], None] = lambda: None
        """Called before the state changes; until then a step may be abandoned."""
        self._carries: list[Carry] = []

    def __call__(self, batch: AnyBatch, recursion: Recursion) -> None:
        self.gradients(batch, recursion)
        self.exchange()
        self.update()

    def gradients(self, batch: AnyBatch, recursion: Recursion) -> None:
        """First half: local gradients, metrics and the next carry. Apart from what is reduced, no state changes."""
        self.network.prepare()
        for tensor in self.state.beside_grads:
            tensor.zero_()
        self._each_micro_batch(batch, recursion)

    def _each_micro_batch(self, batch: AnyBatch, recursion: Recursion) -> None:
        rows, training = self.state.local_batch // self.state.micro, self.state.config.training
        self._carries = []
        for k in range(self.state.micro):
            part = batch
            if self.state.micro > 1:
                part = type(batch)(*(tensor[k * rows : (k + 1) * rows] for tensor in batch))
            slots = self._started(k, part) if training.start_noise else self.state.carries[k]
            carry = self._micro_batch(k, slots, part, recursion)
            if noise := training.step_noise:
                carry = carry._replace(z_L=with_noise(carry.z_L, noise, *self._key(k), 2))
            self._carries.append(carry)

    def _key(self, k: int) -> tuple[int, int, int, int]:
        """Of what the noise of a micro-batch is a function."""
        return self.state.config.seed, int(self.state.step), self.backend.worker, k

    @torch.no_grad()
    def _started(self, k: int, batch: AnyBatch) -> Carry:
        """The slots of a micro-batch, which have taken their new rows already, with noise on the start states."""
        state, carry = self.state, self.state.carries[k]
        deviation = state.config.training.start_noise
        inits = zip((state.h_init, state.l_init), (carry.z_H, carry.z_L), strict=True)
        starts = [
            with_noise(init.expand_as(z), deviation, *self._key(k), n) for n, (init, z) in enumerate(inits)
        ]
        filled = refill(carry, transformed(self.originals, batch), *starts)
        return filled._replace(halted=torch.zeros_like(filled.halted))

    def exchange(self) -> None:
        """All-reduce gradients and metrics; from here on the step must finish."""
        self.before_update()
        for tensor in self.state.reduced:
            self.backend.all_reduce(tensor)

    @torch.no_grad()
    def update(self) -> None:
        """Second half: update the state from the reduced gradients."""
        self._update()
        for old, new in zip(self.state.carries, self._carries, strict=True):
            target = flatten_carry(old)
            for name, tensor in flatten_carry(new).items():
                target[name].copy_(tensor)
        self._carries = []

    def _micro_batch(self, k: int, slots: Carry, batch: AnyBatch, recursion: Recursion) -> Carry:
        """Forward and backward of one micro-batch; returns its next carry."""
        state, config = self.state, self.state.config
        training, longest = config.training, recursion.halt_max_steps
        with torch.no_grad():
            incoming = transformed(self.originals, batch)
            carry = refill(slots, incoming, state.h_init, state.l_init)
            before = [part.clone() for part in tensors(state.grads)] if state.micro > 1 and k else None
        rows = carry.rows
        puzzle_BD = None
        if state.puzzle_table is not None:
            puzzle_BD = state.puzzle_table[rows.puzzle.long()].requires_grad_()
        z_H, z_L, logits, halt_logit = self.network(
            carry.z_H, carry.z_L, rows.inputs, puzzle_BD, *recursion.cycles
        )
        answer = judge(logits, rows.labels, state.puzzles.ignore)
        steps = carry.steps + 1
        lm_loss = answer.cross_entropy.sum() / training.batch_size
        halt_loss = halting_loss(halt_logit, answer.exact).sum() / training.batch_size
        loss = lm_loss + halt_loss
        sums = {"lm_loss": lm_loss, "halt_loss": halt_loss}
        if isinstance(batch, HintBatch):
            sums["hints"] = batch.hints.sum() / training.batch_size
        if training.halting_cost:
            further = expected_further_steps(halt_logit, steps, longest)
            sums["cost_loss"] = training.halting_cost * further.sum() / training.batch_size
            loss = loss + sums["cost_loss"]
        (loss if state.scale is None else loss * state.scale[0]).backward()

        with torch.no_grad():
            halted = halt(steps, halt_logit, batch.minimum, longest)
            counted = halted * answer.valid
            sums |= {
                "halted": counted.sum(),
                "accuracy": (counted * answer.accuracy).sum(),
                "exact": (counted * answer.exact).sum(),
                "halt_right": (counted * ((halt_logit > 0) == (answer.exact > 0))).sum(),
                "halt_steps": (counted * steps).sum(),
            }
            bins = torch.arange(1, config.model.halt_max_steps + 1, device=steps.device, dtype=steps.dtype)
            histogram = ((steps[:, None] == bins) * counted[:, None]).sum(0)
            state.step_metrics.add_(state.meter.batch(sums, histogram))
            added = tensors(state.grads)
            if before is not None:
                added = [new - old for new, old in zip(added, before, strict=True)]
            state.local_norm.add_(squared_norm(added))
            if puzzle_BD is not None:
                assert puzzle_BD.grad is not None
                self._collect_puzzle(k, rows.puzzle, puzzle_BD.grad)
        return Carry(z_H.detach(), z_L.detach(), steps, halted, rows)

    def _collect_puzzle(self, k: int, ids_B: Tensor, grads_BD: Tensor) -> None:
        """Write the micro-batch's puzzle gradients into the tensor that is reduced."""
        state = self.state
        if state.puzzle_dense:
            puzzle.add_dense_gradient(state.puzzle_grads, ids_B, grads_BD)
        else:
            first = self.backend.worker * state.local_batch + k * len(ids_B)
            part = state.puzzle_grads[first : first + len(ids_B)]
            part.copy_(torch.cat((grads_BD, ids_B[:, None].to(grads_BD.dtype)), dim=1))

    def _update(self) -> None:
        """Update weights, EMA and puzzle table from the reduced gradients."""
        state, training = self.state, self.state.config.training
        step, grads = state.step + 1, tensors(state.grads)
        if state.scale is not None:
            for part in grads:
                part.div_(state.scale[0])
            state.local_norm.div_(state.scale[0].square())
        squared = squared_norm(grads)
        norm, finite = squared.sqrt(), torch.isfinite(squared)
        loss = state.step_metrics[INDEX["lm_loss"]] + state.step_metrics[INDEX["halt_loss"]]
        loss = loss + state.step_metrics[INDEX["cost_loss"]]
        extra = {"grad_norm": norm, "grad_norm_big": squared}
        parts = state.micro * self.backend.world
        extra["grad_norm_small"] = state.local_norm[0] * parts
        norm_bad = ~finite
        kept = None
        if state.scale is not None:
            # float16 overflows now and then: such a step only changes the scale
            norm_bad = torch.zeros_like(finite)
            extra = {name: torch.where(finite, value, 0.0) for name, value in extra.items()}
            extra["skipped"] = (~finite).to(step.dtype)
            kept = [(tensor, tensor.clone()) for tensor in self._trained()]
            state.scale.copy_(loss_scale.adjusted(state.scale, finite))
        if training.max_grad_norm is not None:
            clip = (training.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for part in grads:
                part.mul_(clip)

        factor = lr_factor(step, training.warmup_steps, training.steps, training.lr_min_ratio)
        rates = flat.optimiser(training).rates(training, step, factor * training.lr)
        ema = state.ema if state.averages else None
        chunk = self.backend.chunk
        flat.update(training, state.params, state.grads, state.moments, ema, rates, chunk, state.layout)
        state.ema_steps.add_(1)
        if state.puzzle_table is not None:
            self._update_puzzle(state.puzzle_table, factor * (training.puzzle_lr or training.lr))
        if kept is not None:
            for tensor, old in kept:
                tensor.copy_(torch.where(finite, tensor, old))
        state.meter.add(state.step_metrics, step, ~torch.isfinite(loss), norm_bad, extra)
        state.step.copy_(step)

    def _trained(self) -> list[Tensor]:
        state = self.state
        buffers = [state.params, *state.moments, state.ema, state.ema_steps, state.puzzle_table]
        return [tensor for buffer in buffers if buffer is not None for tensor in tensors(buffer)]

    def _update_puzzle(self, table: Tensor, lr: Tensor | float) -> None:
        state, gradient = self.state, self.state.puzzle_grads
        weight_decay = state.config.training.puzzle_weight_decay
        if state.puzzle_dense:
            puzzle.update_dense(table, gradient, lr, weight_decay)
        else:
            ids, grads = gradient[:, -1].to(torch.int32), gradient[:, :-1]
            puzzle.update_rows(table, ids, grads, lr, weight_decay)
