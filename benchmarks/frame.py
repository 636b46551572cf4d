"""Shared by all benchmarks: timing, pairing, tables, and the JSON document that each one writes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trm.provenance import provenance

ROOT = Path(__file__).parents[1]
TRM = [sys.executable, "-m", "trm"]


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(times), "least": min(times), "most": max(times)}


def timed(command: Sequence[str], folder: Path = ROOT) -> tuple[float, float]:
    """Wall and CPU seconds of a command on one thread. Ends the benchmark with the command's errors if it fails."""
    began = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)  # unlike RUSAGE_CHILDREN, this process only
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{errors[-2000:]}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def seconds(call: Callable[[], object], backend: Any, repeat: int = 1) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    backend.synchronize()
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(repeat):
        call()
    backend.synchronize()
    return (time.perf_counter() - start) / repeat, (time.process_time() - processor) / repeat


def best_seconds(call: Callable[[], object], backend: Any) -> float:
    """Shortest wall time of six calls."""
    return min(seconds(call, backend)[0] for _ in range(6))


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, backend: Any) -> dict[str, Any]:
    """Time `calls["ours"]` and the baselines in turns, so that a busy machine slows all of them.

    Returns for each one its median seconds, the median ratios of its wall and CPU seconds to ours, and the quartiles of
    the wall ratio.
    """
    for call in calls.values():
        seconds(call, backend, 8 if backend.name == "cuda" else 3)  # warm-up, compilation, CUDA graph
    # A round has to be long enough for the clock.
    repeat = max(1, int(0.1 / max(1e-4, seconds(calls["ours"], backend)[0])))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call, backend, repeat))
    found: dict[str, Any] = {}
    for name, times in taken.items():
        walls, processor = (
            [its[k] / ours[k] for ours, its in zip(taken["ours"], times, strict=True)] for k in (0, 1)
        )
        low, median, high = statistics.quantiles(walls, n=4) if rounds > 1 else walls * 3
        found[name] = {
            "seconds": statistics.median(wall for wall, _ in times),
            "ratio": median,
            "ratio_quartiles": [low, high],
            "processor_ratio": statistics.median(processor),
        }
    return found


def cell(value: Any) -> str:
    """A table cell: four significant digits; empty for None."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "-".join(map(cell, value))
    return "" if value is None else str(value)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with the same keys as aligned text."""
    rows = list(rows)
    lines = [list(rows[0])] + [[cell(value) for value in row.values()] for row in rows] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(description=description, formatter_class=raw)
    made.add_argument("--json", type=Path, help="also write the results to this file")
    if rounds:
        made.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    return made


def finish(rows: Sequence[Mapping[str, Any]], path: Path | None, **more: Any) -> None:
    """Print the rows, and write them with machine and provenance to `path`."""
    print(table(rows))
    if path:
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
        document = {"machine": machine, "load": os.getloadavg(), "provenance": provenance(), **more}
        path.write_text(json.dumps(document | {"rows": rows}, indent=1) + "\n")
