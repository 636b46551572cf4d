"""A search as a moving picture: an SVG file that repeats the model's answers, step by step."""

import itertools
from typing import Any

import numpy as np

from trm.tasks.sudoku.geometry import SYMBOLS, Geometry

CELL, EDGE = 36, 3
FIRST, STEP, LAST = 1.4, 0.6, 4.0
"""Seconds that the puzzle, a step and the last step are shown."""

STYLE = """
text { font: 19px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; text-anchor: middle;
  fill: #0b5f96 }
.given { fill: #1c1c1a; font-weight: 700 } .wrong { fill: #c4314b }
.note { font-size: 15px; fill: #5b5b57 } .back { fill: #fff } .clue { fill: #f1f1ec } .line { stroke: #dcdcd6 }
.box { stroke: #5b5b57; stroke-width: 2; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #7cc0ef } .given { fill: #eceae4 } .wrong { fill: #ff9aa8 }
  .note { fill: #a9a79f } .back { fill: #1f1f1d } .clue { fill: #2a2a28 } .line { stroke: #3a3a37 }
  .box { stroke: #a9a79f } }
"""


def animation(geometry: Geometry, question: np.ndarray, history: list[np.ndarray]) -> str:
    """SVG of a puzzle and its answers, [S] each; digits that the last answer does not keep are red."""
    side, size = geometry.side, geometry.side * CELL
    frames, answer = [question, *history], history[-1]
    parts = [_rectangle("back", 0, 0, size)]
    for cell, clue in enumerate(question.tolist()):
        row, column = divmod(cell, side)
        at = (column + 0.5) * CELL, row * CELL + 25
        if clue:
            parts.append(_rectangle("clue", column * CELL, row * CELL, CELL))
            parts += _texts("given", at, [clue] * len(frames))
        else:
            parts += _texts("", at, [int(frame[cell]) for frame in frames], int(answer[cell]))
    for k in range(1, side):
        parts.append(f'<path class="line" d="M0 {k * CELL}h{size}M{k * CELL} 0v{size}"/>')
    rows = "".join(f"M0 {k * CELL}h{size}" for k in range(0, side, geometry.box_rows))
    columns = "".join(f"M{k * CELL} 0v{size}" for k in range(0, side, geometry.box_cols))
    parts += [f'<path class="box" d="{rows}{columns}"/>', _rectangle("box", 0, 0, size)]
    notes = [f"{(question > 0).sum()} clues", *(f"supervision step {k + 1}" for k in range(len(history)))]
    parts += _texts("note", (size / 2, size + 25), notes)
    whole = size + 2 * EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-EDGE} {-EDGE} {whole} {whole + 30}" width="{whole}" '
        f'role="img" aria-label="A Sudoku and a model\'s answer after each of {len(history)} steps">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _rectangle(kind: str, x: float, y: float, size: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{size}" height="{size}"/>'


def _texts(kind: str, at: tuple[float, float], values: list[Any], final: int | None = None) -> list[str]:
    """What stands at a place over time: one element for each run of equal values, visible as long as it lasts. A
    program that cannot animate shows the last. `final`: other values are wrong."""
    starts = [0.0, *(FIRST + STEP * step for step in range(len(values) - 1))]
    total, found = starts[-1] + LAST, []
    edges = [k for k in range(len(values)) if k == 0 or values[k] != values[k - 1]]
    for first, end in itertools.pairwise([*edges, len(values)]):
        value = values[first]
        if not value:
            continue
        times = {0.0: int(first == 0), starts[first] / total: 1}
        if end < len(values):
            times[starts[end] / total] = 0
        shown = "" if end == len(values) else ' opacity="0"'
        name = kind if final in (None, value) else "wrong"
        text = SYMBOLS[value - 1] if isinstance(value, int) else value
        moving = (
            f'<animate attributeName="opacity" calcMode="discrete" dur="{total:g}s" repeatCount="indefinite" '
            f'values="{";".join(map(str, times.values()))}" keyTimes="{";".join(f"{t:.4g}" for t in times)}"/>'
        )
        still = first == 0 and end == len(values)
        found.append(
            f'<text class="{name}" x="{at[0]:g}" y="{at[1]:g}"{shown}>{text}{"" if still else moving}</text>'
        )
    return found
