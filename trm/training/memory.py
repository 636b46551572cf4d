"""The error message when a training step runs out of memory."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trm.errors import UserError
from trm.study.cost import fitting_micro_batches, memory_bytes
from trm.study.schema import RunConfig
from trm.study.tasks import Sizes
from trm.study.text import bytes_text

log = logging.getLogger("trm")
OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|RESOURCE_EXHAUSTED|out of memory|_STATUS_ALLOC_FAILED|Failed to CUDA \w*alloc",
    re.I,
)
"""Words of the host, XLA, CUDA and Triton, cuBLAS and cuDNN, NCCL."""


def micro_batches(config: RunConfig, puzzles: Sizes, dtype: torch.dtype, world: int, limit: int) -> int:
    """The run's micro-batches, or more where the device's memory requires it: the result is equal up to rounding."""
    asked = config.training.micro_batches
    found = fitting_micro_batches(config, puzzles, dtype.itemsize, world, limit, asked) if limit else None
    if found is not None and found > asked:
        log.warning("%d micro-batches instead of %d: more rows at once need too much memory", found, asked)
    return found or asked


def out_of_memory_message(
    config: RunConfig, puzzles: Sizes, dtype: torch.dtype, world: int, limit: int, used: int
) -> str:
    """The error for a step in `used` micro-batches that does not fit: its estimated memory, and what would fit."""
    rows = config.training.batch_size // world // used
    itemsize = dtype.itemsize
    need = memory_bytes(config, puzzles, rows, itemsize)
    sentence = f"out of memory with {rows} rows at once on one worker (about {bytes_text(need)} of {bytes_text(limit)})"
    count = fitting_micro_batches(config, puzzles, itemsize, world, limit, used + 1)
    if count is None:
        return (
            f"{sentence}; no number of micro-batches is estimated to fit: use a smaller model or more workers"
        )
    return f"{sentence}; training.micro_batches={count} is estimated to fit, with the same result"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))


@contextmanager
def explain_out_of_memory(sentence: Callable[[], str]) -> Iterator[None]:
    """Convert an out-of-memory error into a UserError with the message `sentence()`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise UserError(sentence()) from error
        raise
