"""Long tasks: progress on stderr (percent, rate, time left), and compiled code in threads (it releases the GIL)."""

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Progress:
    """Prints a line after `every` seconds, then at growing intervals of at most 30 s; nothing without a name."""

    def __init__(self, name: str, total: int, unit: str, every: float = 5.0):
        self.name, self.total, self.unit = name, total, unit
        self.every = every if name else float("inf")
        self.start = self.last = time.monotonic()
        self.printed = False

    def update(self, done: int, note: str = "") -> None:
        """Report the number of finished units."""
        now = time.monotonic()
        if now - self.last < self.every:
            return
        self.last, self.printed, self.every = now, True, min(self.every * 1.5, max(self.every, 30.0))
        rate = done / (now - self.start)
        left = f"{(self.total - done) / rate:.0f} s left" if done and self.total else "time left unknown"
        share = f"{100 * done / self.total:.0f} %" if self.total else ""
        text = f"{self.name}: {share} {done:,} {self.unit}, {rate:,.0f}/s, {left}{note}"
        print(" ".join(text.split()), file=sys.stderr, flush=True)

    def close(self, done: int) -> None:
        """Print the last line if others were printed."""
        if self.printed:
            seconds = time.monotonic() - self.start
            print(f"{self.name}: {done:,} {self.unit} in {seconds:.1f} s", file=sys.stderr, flush=True)


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
    progress = Progress(name, rows, unit)
    ranges = [(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]
    if not ranges:
        return
    work(*ranges.pop(0))
    with ThreadPoolExecutor(threads()) as pool:
        for (_, stop), _ in zip(ranges, pool.map(lambda bounds: work(*bounds), ranges)):
            progress.update(stop)
    progress.close(rows)
