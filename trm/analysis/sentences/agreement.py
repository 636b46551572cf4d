"""Sentences on runs that ought to be the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trm.analysis.words import listed, memory, number, percent

CLOSE = 4e-3
"""Largest relative difference at the first measurement at which two curves count as the same: bfloat16's rounding."""


class Agreement(NamedTuple):
    """How one grid point compares with the first (which differs from itself in nothing)."""

    name: str
    start: Mapping[str, float]
    """Metric -> relative difference at the first measurement, before training has amplified anything."""
    whole: Mapping[str, float]
    """The largest one over the whole run."""
    accuracy: float | None
    rows_per_second: float | None
    peak_memory: float | None


def agrees(part: Agreement) -> bool:
    """Whether a point starts as the first one does, to rounding."""
    return max(part.start.values(), default=0.0) <= CLOSE


def agreement_sentence(parts: Sequence[Agreement]) -> str:
    """Differences of each point from the first, then what each one costs."""
    first, *others = parts
    said = []
    for part in others:
        if not part.whole:
            said.append(f"{part.name} shares no seed with {first.name}: not compared.")
        elif max(part.whole.values()) == 0:
            said.append(f"{part.name} is {first.name} to the last bit.")
        else:
            shown = [
                f"{metric} within {number(100 * part.start[metric], 2)} % at the first measurement "
                f"({number(100 * part.whole[metric], 2)} % at most later)"
                for metric in part.whole
            ]
            verb = "agrees" if agrees(part) else "does not agree"
            said.append(f"{part.name} {verb} with {first.name}: {listed(shown)}.")
    costs = [
        f"{part.name} {number(part.rows_per_second)} puzzles/s, {memory(part.peak_memory)} a worker, "
        f"{percent(part.accuracy)} exact"
        for part in parts
    ]
    return " ".join(said) + f" Measured: {'; '.join(costs)}."


def agreement_answer(parts: Sequence[Agreement]) -> str:
    """How many agree, and by how much the worst is off."""
    first, *others = parts
    known = [part for part in others if part.whole]
    if not known:
        return f"Nothing was measured beside {first.name}."
    good = [part for part in known if agrees(part)]
    worst = max(known, key=lambda part: max(part.start.values()))
    off = max(worst.start.values())
    if max(max(part.whole.values()) for part in known) == 0:
        return f"{listed([first.name, *(part.name for part in known)])} are the same to the last bit."
    size = f"largest difference at the start {number(100 * off, 2)} %"
    if len(known) == 1:
        verb = "agrees" if good else "does not agree"
        return f"{worst.name} {verb} with {first.name} to rounding ({size})."
    many = "all" if len(good) == len(known) else str(len(good))
    return f"Of {len(known)} other ways to compute {first.name}'s run, {many} agree to rounding ({size}: {worst.name})."
