"""The error message when a training step runs out of memory."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trm.backends.base import Backend
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


def micro_batches(config: RunConfig, puzzles: Sizes, dtype: torch.dtype, backend: Backend) -> int:
    """The run's micro-batches, or more where the device's memory requires it: the result is equal up to rounding."""
    asked, limit = config.training.micro_batches, backend.memory_limit()
    if not (limit and backend.splits_batches):
        return asked
    found = fitting_micro_batches(config, puzzles, dtype.itemsize, backend.world, limit, asked)
    if found is not None and found > asked:
        log.warning("%d micro-batches instead of %d: more rows at once need too much memory", found, asked)
    return found or asked


def out_of_memory_message(
    config: RunConfig, puzzles: Sizes, dtype: torch.dtype, backend: Backend, used: int
) -> str:
    """The error for a step in `used` micro-batches that does not fit: its estimated memory, and what would fit."""
    devices, limit, itemsize = backend.device_count(), backend.memory_limit(), dtype.itemsize
    rows = config.training.batch_size // devices // used
    need = memory_bytes(config, puzzles, rows, itemsize)
    sentence = f"out of memory with {rows} rows at once on one device (about {bytes_text(need)} of {bytes_text(limit)})"
    count = fitting_micro_batches(config, puzzles, itemsize, devices, limit, used + 1)
    if count is None:
        return (
            f"{sentence}; no number of micro-batches is estimated to fit: use a smaller model or more devices"
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
