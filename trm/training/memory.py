"""Estimates of a training step's memory, and the advice when it runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trm.errors import UserError
from trm.study.flops import inner_width, parameters, tokens
from trm.study.schema import RunConfig
from trm.training.history import si
from trm.training.state import Puzzles

SHARE = 0.8  # of the memory that may be filled by estimate


def row_bytes(config: RunConfig, puzzles: Puzzles, itemsize: int) -> float:
    """Bytes that backward keeps for one row: the last round's activations, in the forward dtype."""
    model = config.model
    length, width = tokens(model, puzzles.seq_len), model.d_model
    block = length * (6 * width + 4 * inner_width(model, width))
    if model.mixer == "mlp":
        block += 4 * inner_width(model, length) * width
    else:
        block += 5 * length * width
    updates = max([model.l_cycles, *(stage.l_cycles for stage in config.training.curriculum)]) + 1
    return float(itemsize * updates * model.layers * block)


def fixed_bytes(config: RunConfig, puzzles: Puzzles) -> float:
    """Bytes of weights, gradients, moments and average in float32, and of the puzzle table."""
    size = parameters(config.model, puzzles.seq_len, puzzles.vocab)
    return 4.0 * (7 * size + puzzles.num_ids * config.model.d_model)


def fitting_micro_batches(
    config: RunConfig, puzzles: Puzzles, itemsize: int, world: int, limit: int
) -> int | None:
    """The fewest micro-batches, more than now, whose estimate fits in `limit` bytes; None if none does."""
    rows = config.training.batch_size // world
    for count in range(config.training.micro_batches + 1, rows + 1):
        if rows % count == 0:
            need = fixed_bytes(config, puzzles) + rows / count * row_bytes(config, puzzles, itemsize)
            if need <= SHARE * limit:
                return count
    return None


def out_of_memory_sentence(
    config: RunConfig, puzzles: Puzzles, dtype: torch.dtype, world: int, limit: int
) -> str:
    """The message for a step that does not fit: its estimated size, and what would fit."""
    rows = config.training.batch_size // world // config.training.micro_batches
    itemsize = dtype.itemsize
    need = fixed_bytes(config, puzzles) + rows * row_bytes(config, puzzles, itemsize)
    sentence = f"out of memory with {rows} rows at once on one worker (about {si(need)}B of {si(limit)}B)"
    count = fitting_micro_batches(config, puzzles, itemsize, world, limit)
    if count is None:
        return f"{sentence}; no number of micro-batches fits by estimate: use a smaller model or more workers"
    return f"{sentence}; training.micro_batches={count} would fit by estimate, with the same result"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of torch or Python means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "RESOURCE_EXHAUSTED" in text
    )


@contextmanager
def explained(sentence: Callable[[], str]) -> Iterator[None]:
    """Turn an out-of-memory error raised inside into a UserError with the message `sentence()`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise UserError(sentence()) from error
        raise
