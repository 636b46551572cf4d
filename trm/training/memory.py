"""The error message when a training step runs out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trm.errors import UserError
from trm.study.cost import memory_bytes
from trm.study.schema import RunConfig
from trm.study.tasks import Sizes
from trm.training.history import si

SHARE = 0.8  # of the memory that an estimate may fill


def fitting_micro_batches(
    config: RunConfig, puzzles: Sizes, itemsize: int, world: int, limit: int
) -> int | None:
    """The smallest larger number of micro-batches whose estimate fits into `limit` bytes; None if there is none."""
    rows = config.training.batch_size // world
    for count in range(config.training.micro_batches + 1, rows + 1):
        if rows % count == 0 and memory_bytes(config, puzzles, rows // count, itemsize) <= SHARE * limit:
            return count
    return None


def out_of_memory_message(
    config: RunConfig, puzzles: Sizes, dtype: torch.dtype, world: int, limit: int
) -> str:
    """The error for a step that does not fit: its estimated memory, and what would fit."""
    rows = config.training.batch_size // world // config.training.micro_batches
    itemsize = dtype.itemsize
    need = memory_bytes(config, puzzles, rows, itemsize)
    sentence = f"out of memory with {rows} rows at once on one worker (about {si(need)}B of {si(limit)}B)"
    count = fitting_micro_batches(config, puzzles, itemsize, world, limit)
    if count is None:
        return (
            f"{sentence}; no number of micro-batches is estimated to fit: use a smaller model or more workers"
        )
    return f"{sentence}; training.micro_batches={count} is estimated to fit, with the same result"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "RESOURCE_EXHAUSTED" in text
    )


@contextmanager
def explain_out_of_memory(sentence: Callable[[], str]) -> Iterator[None]:
    """Convert an out-of-memory error into a UserError with the message `sentence()`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise UserError(sentence()) from error
        raise
