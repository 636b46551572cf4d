"""Which of several ways to compute the same thing is the fastest here: timed once on a GPU, the first one elsewhere."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

log = logging.getLogger("trm")
REPEATS = 5


class Way(NamedTuple):
    """One way: its name, the tile of its kernel if it has one, and what runs it."""

    name: str
    shape: dict[str, int]
    run: Callable[[], Any]


class Chooser:
    """Remembers what was chosen for each key; a way that does not run on this GPU is left out.

    `only`: by operation (`tokens`, `channels`, `attention`), the name of the ways allowed.
    """

    def __init__(self, only: dict[str, str] | None = None):
        self.only, self.chosen = only or {}, {}
        self.milliseconds: dict[tuple[str, Hashable], dict[str, float]] = {}

    def run(self, operation: str, key: Hashable, ways: Sequence[Way], timed: bool) -> None:
        """Run the chosen way; ways must give the same result however often they run."""
        allowed = self.only.get(operation)
        ways = [way for way in ways if allowed in (None, way.name)]
        if not timed:
            ways[0].run()
            return
        place = operation, key
        if place not in self.chosen:
            self.chosen[place] = self._fastest(place, ways)
        ways[self.chosen[place]].run()

    def _fastest(self, place: tuple[str, Hashable], ways: Sequence[Way]) -> int:
        times = {}
        for number, way in enumerate(ways):
            try:
                way.run()  # compiles
                times[number] = statistics.median(_milliseconds(way.run) for _ in range(REPEATS))
            except Exception as error:  # a tile too large for the chip, or one that the compiler refuses
                log.debug("%s %s: %s %s does not run here: %s", *place, way.name, way.shape, error)
        if not times:
            raise RuntimeError(f"no way to compute {place[0]} runs on this GPU for {place[1]}")
        self.milliseconds[place] = {
            f"{ways[k].name} {'x'.join(map(str, ways[k].shape.values()))}".strip(): value
            for k, value in times.items()
        }
        return min(times, key=times.__getitem__)


SHARED = Chooser()
"""What all networks of a process use unless told otherwise: each operation is timed once."""


def _milliseconds(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
