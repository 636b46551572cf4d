"""One training step, the same for every backend: static shapes, no transfer to the host, state updated in place.

B rows of this worker, L tokens, S cells, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trm.devices.base import Backend
from trm.network.act import Carry, Rows, halt, refill
from trm.network.losses import expected_further_steps, halting_loss
from trm.network.registry import Network, implementation
from trm.training import adaptive
from trm.training.metrics import INDEX
from trm.training.optim import flat, loss_scale, puzzle
from trm.training.optim.schedule import lr_factor
from trm.training.state import TrainState, flatten_carry


class Batch(NamedTuple):
    """What the host passes to a step; row b of the worker's part of the global batch."""

    original: Tensor
    """int32 [B]: which original puzzle."""
    token_map: Tensor
    """uint8 [B, V]: the symbol that replaces each symbol."""
    cell_map: Tensor
    """int16 [B, S]: the cell that each cell's symbol is taken from."""
    minimum: Tensor
    """int32 [B]: exploration's least number of steps, 0 for none."""


class HintBatch(NamedTuple):
    """A batch whose rows get extra clues: see `trm.data.hints`."""

    original: Tensor
    token_map: Tensor
    cell_map: Tensor
    minimum: Tensor
    """As in `Batch`."""
    order: Tensor
    """int16 [B, S]: when each cell of the original would be filled in; S: never."""
    hints: Tensor
    """float32 [B]: hints of each row; with `data.hints: auto` a share of the range around the level, 0 to 1."""


class RowBatch(NamedTuple):
    """A batch whose copies were made on the host (ARC: their maps are larger than they are)."""

    inputs: Tensor
    """uint8 [B, S]."""
    labels: Tensor
    """uint8 [B, S]."""
    puzzle: Tensor
    """int32 [B]: puzzle-table row; every augmented task has its own."""
    minimum: Tensor
    """int32 [B]: as in `Batch`."""


AnyBatch = Batch | HintBatch | RowBatch


class Originals(NamedTuple):
    """The data set on the device: uint8 [N, S] cells and answers, int32 [N] puzzle-table rows."""

    inputs: Tensor
    labels: Tensor
    puzzle: Tensor


def transformed(originals: Originals, batch: AnyBatch, hints: Tensor | None = None) -> Rows:
    """The batch's rows: each original with `hints` [B] blank cells filled in, its cells permuted, then its symbols; or
    the rows that the batch holds."""
    if isinstance(batch, RowBatch):
        return Rows(batch.inputs, batch.labels, batch.puzzle)
    index, cells, symbols = batch.original.long(), batch.cell_map.long(), batch.token_map
    questions, answers = originals.inputs[index], originals.labels[index]
    if isinstance(batch, HintBatch):
        assert hints is not None
        questions = torch.where(batch.order < hints[:, None], answers, questions)

    def moved(grids: Tensor) -> Tensor:
        return torch.gather(symbols, 1, torch.gather(grids, 1, cells).long())

    return Rows(moved(questions), moved(answers), originals.puzzle[index])


class TrainStep:
    """Callable (batch, h_cycles, l_cycles): one supervision step of every slot and one optimiser step."""

    def __init__(self, state: TrainState, originals: Originals, backend: Backend):
        self.state, self.originals, self.backend = state, originals, backend
        own = implementation(backend.network)
        self.network: Network = own.network(state.layout, state.params, state.grads, state.arch)
        self._judge = own.judge
        self._optimise = own.optimisers.get(state.config.training.optimizer, flat.update)
        self.before_update: Callable[[], None] = lambda: None
        """Called when the state is about to change: until then a step may be abandoned."""
        self._carries: list[Carry] = []

    def __call__(self, batch: AnyBatch, h_cycles: int, l_cycles: int) -> None:
        self.gradients(batch, h_cycles, l_cycles)
        self.exchange()
        self.update()

    def gradients(self, batch: AnyBatch, h_cycles: int, l_cycles: int) -> None:
        """First half: this worker's gradients and metrics, and its slots' next carry. The state stays as it is."""
        self.network.prepare()
        self.state.reduce[self.state.layout.size :].zero_()
        rows = self.state.local_batch // self.state.micro
        self._carries = []
        for k in range(self.state.micro):
            part = type(batch)(*(tensor[k * rows : (k + 1) * rows] for tensor in batch))
            self._carries.append(self._micro_batch(k, part, h_cycles, l_cycles))

    def exchange(self) -> None:
        """Sum the gradients and metrics over the workers; from here on the step must finish."""
        self.before_update()
        with torch.no_grad():
            self.backend.all_reduce(self.state.reduce)

    @torch.no_grad()
    def update(self) -> None:
        """Second half: change the state by the summed gradients."""
        self._update()
        for old, new in zip(self.state.carries, self._carries, strict=True):
            target = flatten_carry(old)
            for name, tensor in flatten_carry(new).items():
                target[name].copy_(tensor)
        self._carries = []

    def _micro_batch(self, k: int, batch: AnyBatch, h_cycles: int, l_cycles: int) -> Carry:
        """Forward and backward of one micro-batch; returns its slots' next carry."""
        state, config = self.state, self.state.config
        training, model = config.training, config.model
        with torch.no_grad():
            hints = adaptive.hints(batch.hints, state.hint_level) if isinstance(batch, HintBatch) else None
            incoming = transformed(self.originals, batch, hints)
            carry = refill(state.carries[k], incoming, state.h_init, state.l_init)
            before = state.grads.clone() if state.micro > 1 and k else None
        rows = carry.rows
        puzzle_BD = None
        if state.puzzle_table is not None:
            puzzle_BD = state.puzzle_table[rows.puzzle.long()].requires_grad_()
        z_H, z_L, logits, halt_logit = self.network(
            carry.z_H, carry.z_L, rows.inputs, puzzle_BD, h_cycles, l_cycles
        )
        answer = self._judge(logits, rows.labels, state.puzzles.ignore)
        steps = carry.steps + 1
        lm_loss = answer.cross_entropy.sum() / training.batch_size
        halt_loss = halting_loss(halt_logit, answer.exact).sum() / training.batch_size
        loss = lm_loss + halt_loss
        sums = {"lm_loss": lm_loss, "halt_loss": halt_loss}
        if hints is not None:
            sums["hints"] = hints.sum() / training.batch_size
        if training.halting_cost:
            further = expected_further_steps(halt_logit, steps, model.halt_max_steps)
            sums["cost_loss"] = training.halting_cost * further.sum() / training.batch_size
            loss = loss + sums["cost_loss"]
        (loss if state.scale is None else loss * state.scale[0]).backward()

        with torch.no_grad():
            halted = halt(steps, halt_logit, batch.minimum, model.halt_max_steps)
            counted = halted * answer.valid
            sums |= {
                "halted": counted.sum(),
                "accuracy": (counted * answer.accuracy).sum(),
                "exact": (counted * answer.exact).sum(),
                "halt_right": (counted * ((halt_logit > 0) == (answer.exact > 0))).sum(),
                "halt_steps": (counted * steps).sum(),
            }
            bins = torch.arange(1, model.halt_max_steps + 1, device=steps.device, dtype=steps.dtype)
            histogram = ((steps[:, None] == bins) * counted[:, None]).sum(0)
            state.step_metrics.add_(state.meter.batch(sums, histogram))
            own = state.grads if before is None else state.grads - before
            state.own_norm.add_(torch.dot(own, own))
            if puzzle_BD is not None:
                assert puzzle_BD.grad is not None
                self._collect_puzzle(k, rows.puzzle, puzzle_BD.grad)
        return Carry(z_H.detach(), z_L.detach(), steps, halted, rows)

    def _collect_puzzle(self, k: int, ids_B: Tensor, grads_BD: Tensor) -> None:
        """Write the micro-batch's puzzle gradients into the vector that the workers sum."""
        state = self.state
        width = grads_BD.shape[1]
        if state.puzzle_dense:
            gradient = puzzle.dense_gradient(ids_B, grads_BD, state.puzzles.num_ids)
            state.puzzle_grads.view(-1, width + 1).add_(gradient)
        else:
            first = self.backend.worker * state.local_batch + k * len(ids_B)
            part = state.puzzle_grads.view(-1, width + 1)[first : first + len(ids_B)]
            part.copy_(torch.cat((grads_BD, ids_B[:, None].to(grads_BD.dtype)), dim=1))

    def _update(self) -> None:
        """Optimiser, average and puzzle table from the reduced gradients."""
        state, training = self.state, self.state.config.training
        step = state.step + 1
        if state.scale is not None:
            state.grads.div_(state.scale[0])
            state.own_norm.div_(state.scale[0].square())
        squared = torch.dot(state.grads, state.grads)
        norm, finite = squared.sqrt(), torch.isfinite(squared)
        loss = state.step_metrics[INDEX["lm_loss"]] + state.step_metrics[INDEX["halt_loss"]]
        loss = loss + state.step_metrics[INDEX["cost_loss"]]
        extra = {"grad_norm": norm, "grad_norm_big": squared}
        parts = state.micro * self.backend.world
        extra["grad_norm_small"] = state.own_norm[0] * parts
        norm_bad = ~finite
        kept = None
        if state.scale is not None:
            # an overflow is expected now and then: the step changes nothing but the scale
            norm_bad = torch.zeros_like(finite)
            extra = {name: torch.where(finite, value, 0.0) for name, value in extra.items()}
            extra["skipped"] = (~finite).to(step.dtype)
            kept = [(tensor, tensor.clone()) for tensor in self._trained()]
            state.scale.copy_(loss_scale.adjusted(state.scale, finite))
        if training.max_grad_norm is not None:
            state.grads.mul_((training.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))

        factor = lr_factor(step, training.warmup_steps, training.steps, training.lr_min_ratio)
        rates = flat.rates(training, step, factor * training.lr)
        ema = state.ema if state.averages else None
        self._optimise(training, state.params, state.grads, state.moments, ema, rates, self.backend.chunk)
        if state.puzzle_table is not None:
            self._update_puzzle(state.puzzle_table, factor * (training.puzzle_lr or training.lr))
        if kept is not None:
            for tensor, old in kept:
                tensor.copy_(torch.where(finite, tensor, old))
        if state.hint_level is not None:
            solved = state.step_metrics[INDEX["exact"]] / training.batch_size
            finished = state.step_metrics[INDEX["halted"]] / training.batch_size
            adaptive.update(state.hint_level, solved, finished, state.puzzles.seq_len)
        state.meter.add(state.step_metrics, step, ~torch.isfinite(loss), norm_bad, extra)
        state.step.copy_(step)

    def _trained(self) -> list[Tensor]:
        state = self.state
        tensors = [state.params, *state.moments, state.ema, state.puzzle_table]
        return [tensor for tensor in tensors if tensor is not None]

    def _update_puzzle(self, table: Tensor, lr: Tensor) -> None:
        state = self.state
        gradient = state.puzzle_grads.view(-1, table.shape[1] + 1)
        weight_decay = state.config.training.puzzle_weight_decay
        if state.puzzle_dense:
            puzzle.update_dense(table, gradient, lr, weight_decay)
        else:
            ids, grads = gradient[:, -1].to(torch.int32), gradient[:, :-1]
            puzzle.update_rows(table, ids, grads, lr, weight_decay)
