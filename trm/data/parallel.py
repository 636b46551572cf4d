"""Run compiled code on many rows in threads (it releases the GIL)."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from trm.data.progress import Progress


def threads() -> int:
    """Number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def over_rows(
    work: Callable[[int, int], None], rows: int, chunk: int, name: str = "", unit: str = "rows"
) -> None:
    """Call work(start, stop) for consecutive ranges of at most `chunk` rows, in any order.

    The first call runs alone, so that code is compiled once. Without a name, no progress is printed.
    """
    progress = Progress(name, rows, unit, every=5.0 if name else float("inf"))
    ranges = [(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]
    if not ranges:
        return
    work(*ranges.pop(0))
    with ThreadPoolExecutor(threads()) as pool:
        for (_, stop), _ in zip(ranges, pool.map(lambda bounds: work(*bounds), ranges)):
            progress.update(stop)
    progress.close(rows)
