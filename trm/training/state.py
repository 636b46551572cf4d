"""All tensors that a training step reads and updates."""

import math
from functools import partial

import torch
from torch import Tensor

from trm.backends.base import Backend, Precision
from trm.model.act import Carry, Rows, empty_carry
from trm.model.parameters import (
    Buffer,
    Layout,
    architecture,
    initial_states,
    initial_weights,
    mapped,
    tensors,
)
from trm.study.schema import RunConfig
from trm.study.tasks import Sizes
from trm.training.memory import micro_batches
from trm.training.metrics import Meter
from trm.training.optim import flat, loss_scale, puzzle


class TrainState:
    """Weights, EMA, optimiser state, puzzle table, batch slots, step count and metric sums.

    All tensors are updated in place. `reduced` is summed over the workers once per step: gradients, puzzle gradients,
    metrics of this step, squared norm of the local gradient, stop request; one tensor if the backend has views, and one
    for each of these and each parameter otherwise.
    """

    def __init__(self, config: RunConfig, puzzles: Sizes, precision: Precision, backend: Backend):
        model, training = config.model, config.training
        self.config, self.puzzles, self.precision = config, puzzles, precision
        self.layout = Layout.of(model, puzzles.seq_len, puzzles.vocab)
        self.arch = architecture(model, precision.forward)
        device, size, width = backend.device, self.layout.size, model.d_model
        self.local_batch = training.batch_size // backend.world
        self.micro = micro_batches(config, puzzles, precision.forward, backend)
        length = puzzles.seq_len + model.puzzle_tokens

        zeros = partial(torch.zeros, device=device)
        weights = partial(zeros, dtype=precision.weights)
        self.params: Buffer = (
            weights(size) if backend.views else list(map(weights, self.layout.shapes.values()))
        )
        like = partial(torch.zeros_like, dtype=torch.float32)
        self.ema: Buffer = mapped(like, self.params) if training.ema > 0 else None
        self.ema_steps = torch.zeros((), device=device)
        """Updates of the EMA so far. It starts at zero: `bias_corrected` gives the weights to evaluate."""
        self.averages = backend.rank == 0 or config.placement.average == "every"
        """Whether this process updates its EMA."""
        self.moments = flat.moments(training, self.params)
        self.step = torch.zeros((), device=device)
        self.scale = loss_scale.initial_scale(device) if precision.scaled else None
        self.puzzle_table = (
            torch.zeros(puzzles.num_ids, width, device=device) if model.puzzle_tokens else None
        )
        states = initial_states(model, config.seed, precision.forward)
        self.h_init, self.l_init = (backend.place(states[name]) for name in ("h_init", "l_init"))
        rows = self.local_batch // self.micro
        self.carries = [
            place_carry(empty_carry(length, width, puzzles.seq_len, rows, precision.forward), backend)
            for _ in range(self.micro)
        ]
        self.meter = Meter(model.halt_max_steps, device)

        self.puzzle_dense = puzzle.is_dense(puzzles.num_ids, training.batch_size)
        columns = width + (puzzles.num_ids > 1)
        puzzle_rows = puzzles.num_ids if self.puzzle_dense else training.batch_size
        puzzle_size = 0 if self.puzzle_table is None else puzzle_rows * columns
        sizes = [puzzle_size, self.meter.size, 1, 1]
        if backend.views:
            self.reduced = [zeros(size + sum(sizes))]
            self.grads: Buffer
            self.grads, *self.beside_grads = self.reduced[0].split([size, *sizes])
        else:
            self.grads, self.beside_grads = mapped(like, self.params), list(map(zeros, sizes))
            self.reduced = [*self.grads, *self.beside_grads]
        puzzle_grads, self.step_metrics, self.local_norm, self.stop = self.beside_grads
        self.puzzle_grads = puzzle_grads.view(-1, columns)

    def initialise(self, backend: Backend) -> None:
        """Initialise the weights from the run's seed."""
        sizes = self.puzzles
        weights = initial_weights(self.config.model, sizes.seq_len, sizes.vocab, self.config.seed)
        self.load_weights(weights, backend)

    def load_weights(self, weights: dict[str, Tensor], backend: Backend) -> None:
        """Set the parameters to `weights`, host tensors by name."""
        for name, view in self.layout.views(self.params).items():
            view.copy_(backend.place(weights[name]))

    def averaged(self) -> Buffer:
        """The weights to evaluate: the bias-corrected EMA, or the parameters of a run without one."""
        if self.ema is None:
            return self.params
        decay, updates = self.config.training.ema, self.ema_steps
        return mapped(lambda part: bias_corrected(part, decay, updates), self.ema)

    def share_average(self, backend: Backend) -> None:
        """Broadcast the EMA from the first worker if only that one updates it."""
        if self.ema is not None and self.config.placement.average == "first":
            for part in tensors(self.ema):
                average = backend.fetch(part)
                backend.broadcast(average)
                part.copy_(backend.place(average))

    def shared_tensors(self) -> dict[str, Buffer]:
        """Buffers and tensors that are equal on all workers, by their names in checkpoints."""
        shared = {
            "params": self.params,
            "moment1": self.moments.m,
            "moment2": self.moments.v,
            "step": self.step,
            "ema_steps": self.ema_steps,
            "h_init": self.h_init,
            "l_init": self.l_init,
            "metrics": self.meter.sums,
        }
        optional = {"ema": self.ema, "puzzle": self.puzzle_table, "loss_scale": self.scale}
        return shared | {name: tensor for name, tensor in optional.items() if tensor is not None}

    def load_shared(self, saved: dict[str, Tensor], backend: Backend) -> None:
        """Restore `shared_tensors` from host tensors in the format of `on_host`."""
        for name, buffer in self.shared_tensors().items():
            whole = [saved[name]] if isinstance(buffer, Tensor) else self.layout.views(saved[name]).values()
            for tensor, part in zip(tensors(buffer), whole, strict=True):
                tensor.copy_(backend.place(part))

    def fetched(self, buffer: Buffer, backend: Backend) -> Tensor:
        """A buffer on the host, flat."""
        return self.layout.flat(mapped(backend.fetch, buffer))

    def changed_tensors(self) -> list[Tensor]:
        """The tensors that a step updates for the next one."""
        return [tensor for tensor, _ in self.row_axes()]

    def row_axes(self) -> list[tuple[Tensor, int | None]]:
        """`changed_tensors`, each with its axis over batch rows (None: equal on all workers)."""
        slots = [named for carry in self.carries for named in flatten_carry(carry).items()]
        shared = [(part, None) for buffer in self.shared_tensors().values() for part in tensors(buffer)]
        return [*shared, *((tensor, row_axis(name)) for name, tensor in slots)]

    def carry_bytes(self) -> int:
        """Size of this worker's batch slots."""
        fields = [tensor for carry in self.carries for tensor in flatten_carry(carry).values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in fields)

    def on_host(self, backend: Backend, carry: bool) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """`shared_tensors`, buffers flat, and, with `carry`, this worker's slots (z_H, z_L [L, b, D]; others [b, ...]).

        In host memory. Called by all processes.
        """
        slots = [flatten_carry(part) for part in self.carries] if carry else []
        named = {f"{name}/{k}": tensor for k, part in enumerate(slots) for name, tensor in part.items()}
        buffers = self.shared_tensors()
        held = {f"{name}/{k}": part for name, b in buffers.items() for k, part in enumerate(tensors(b))}
        host = backend.fetch_all(held | named)
        parts = iter([host[name] for name in held])
        shared = {name: self.layout.flat(mapped(lambda _: next(parts), b)) for name, b in buffers.items()}
        if not carry:
            return shared, None
        return shared, join_carries(
            [{name: host[f"{name}/{k}"] for name in part} for k, part in enumerate(slots)]
        )

    def load_carry(self, tensors: dict[str, Tensor], backend: Backend) -> None:
        """Restore the batch slots from host tensors in the format of `on_host`."""
        for name, tensor in tensors.items():
            dim = row_axis(name)
            for carry, part in zip(self.carries, tensor.chunk(self.micro, dim=dim), strict=True):
                flatten_carry(carry)[name].copy_(backend.place_rows(part.contiguous(), dim))


def bias_corrected(ema: Tensor, decay: float, updates: Tensor) -> Tensor:
    """The mean of the weights after each of `updates` steps, with weights decay^(updates - k) that sum to 1 (Adam,
    arXiv 1412.6980, section 3), from an EMA that started at zero."""
    return ema / -torch.expm1(updates * math.log(decay))


def row_axis(name: str) -> int:
    """Axis over batch rows of a carry's tensor."""
    return 1 if name in ("z_H", "z_L") else 0


def join_carries(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate flat carries along their rows."""
    return {name: torch.cat([part[name] for part in parts], dim=row_axis(name)) for name in parts[0]}


def place_carry(carry: Carry, backend: Backend) -> Carry:
    """Move a host carry to the device."""
    named = flatten_carry(carry).items()
    z_H, z_L, steps, halted, *rows = (backend.place_rows(tensor, row_axis(name)) for name, tensor in named)
    return Carry(z_H, z_L, steps, halted, Rows(*rows))


def flatten_carry(carry: Carry) -> dict[str, Tensor]:
    """The carry's tensors by their names in checkpoints."""
    *slots, rows = carry
    return dict(zip((*Carry._fields[:4], "inputs", "labels", "puzzle_ids"), (*slots, *rows), strict=True))
