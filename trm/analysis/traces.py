"""Step-by-step puzzles for the page and the steps figure: tokens to characters, grids, what is wrong when."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trm.study.tasks import spec_of

MOST = 12
"""Most puzzles in the page."""


def task_name(trace: Mapping[str, Any]) -> str:
    return str(trace["data"].get("task", "sudoku"))


def shape(trace: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of a trace's grid: a square, else one row."""
    cells = len(trace["answer"])
    side = math.isqrt(cells)
    return (side, side) if side * side == cells else (1, cells)


def boxes(trace: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of a box; (0, 0) for tasks without boxes."""
    data = trace["data"]
    return (int(data["box_rows"]), int(data["box_cols"])) if spec_of(task_name(trace)).boxed else (0, 0)


def wrong(trace: Mapping[str, Any]) -> np.ndarray:
    """Wrong cells [steps, cells]: the answer is defined and the model's differs."""
    answer = np.array(trace["answer"])
    steps = np.array(trace["steps"])
    return np.asarray((steps != answer) & (answer > 0))


def interesting(traces: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Puzzles worth looking at, in a stable order: solved after several steps first, then unsolved, then the rest. No
    puzzle is there twice while others are left."""

    def rank(trace: Mapping[str, Any]) -> tuple[int, int]:
        errors = wrong(trace).sum(axis=1)
        solved = int(errors[-1] == 0)
        late = int(np.flatnonzero(errors == 0)[0]) if (errors == 0).any() else len(errors)
        return (0 if solved and late > 0 else 1 if not solved else 2, -late)

    ranked = sorted(range(len(traces)), key=lambda i: (*rank(traces[i]), i))
    places: dict[str, int] = {}
    for i in ranked:
        places.setdefault(str(traces[i]["question"]), i)
    first = list(places.values())
    kept: list[int] = []
    for kind in (0, 1, 2):
        kept += [i for i in first if rank(traces[i])[0] == kind][: max(1, most // 3)]
    return [traces[i] for i in list(dict.fromkeys([*kept, *first, *ranked]))[:most]]


def puzzles(traces: Sequence[Mapping[str, Any]], most: int = MOST) -> list[dict[str, Any]]:
    """What the page's viewer reads, as plain JSON."""
    found = []
    for trace in interesting(traces, most):
        spec = spec_of(task_name(trace))
        rows, columns = shape(trace)
        found.append(
            {
                "rows": rows,
                "columns": columns,
                "box": list(boxes(trace)),
                "question": [spec.glyph(token) for token in trace["question"]],
                "given": [spec.is_given(token) for token in trace["question"]],
                "steps": [[spec.glyph(token) for token in step] for step in trace["steps"]],
                "wrong": [[int(i) for i in np.flatnonzero(row)] for row in wrong(trace)],
                "halt": [round(float(value), 2) for value in trace.get("halt", [])],
            }
        )
    return found
