"""Puzzles solved step by step: one grid per supervision step, wrong cells marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from trm.analysis.figures.base import OKABE_ITO, TWO, Drawing, canvas, finish, table_of
from trm.analysis.sentences.special import steps_sentence
from trm.analysis.specs import StepsFigure
from trm.analysis.tables import Table
from trm.analysis.traces import boxes, clue, glyph, interesting, shape, wrong
from trm.errors import UserError

GIVEN, WRONG, MAZE_WALL = "#ececE7", "#FBD9D3", "#4a4a4a"
ARC = ["#f4f4f0", *OKABE_ITO[:6], "#8C510A", "#9A9A9A", "#1a1a1a"]
"""Colours 0-9 of ARC grids; 0 is the background."""
LARGEST = 1.6
"""Most inches of one grid's side."""


def draw(spec: StepsFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """A row for each puzzle: the question, then chosen steps."""
    table = table_of(tables, tables[0].experiment)
    rows = table.select(spec.where)
    traces = [trace for trace in table.info.get("traces", []) if trace["run"] in set(rows["run"])]
    if not traces:
        raise UserError(f"no evaluation of {table.experiment} kept traces: set evaluation.traces")
    chosen = interesting(traces, spec.puzzles)
    columns = 1 + min(spec.columns, max(len(trace["steps"]) for trace in chosen))
    cell = min(LARGEST, TWO / columns)
    figure, axes = canvas(TWO, (cell + 0.3) * len(chosen) + 0.1, len(chosen), columns)
    for line, trace in zip(axes, chosen):
        task = str(trace["data"].get("task", "sudoku"))
        _grid(line[0], trace, trace["question"], np.zeros(len(trace["answer"]), bool), task)
        line[0].set_title("question", fontsize=6.5, fontweight="normal", loc="center", pad=3)
        errors = wrong(trace)
        picked = pick(errors, columns - 1)
        for axis, step in zip(line[1:], picked):
            _grid(axis, trace, trace["steps"][step], errors[step], task)
            count = int(errors[step].sum())
            axis.set_title(
                f"step {step + 1}: " + ("solved" if count == 0 else f"{count} wrong"),
                fontsize=6.5,
                fontweight="normal",
                loc="center",
                pad=3,
                color="#00664b" if count == 0 else "#a3001c",
            )
        for axis in line[1 + len(picked) :]:
            axis.set_axis_off()
    return finish(
        figure,
        spec,
        [table],
        rows[rows["run"].isin({trace["run"] for trace in chosen})],
        title=spec.title or "Puzzles solved step by step",
        caption=(
            "The model's answer after supervision steps of one puzzle a row: the first, the last, and those where most "
            "cells change. Grey and bold: given (ARC: every cell in its colour). Red with a cross: wrong. Puzzles of "
            "the test set, one solved after several steps, one not solved, one more where there are."
        ),
        sentence=steps_sentence([wrong(trace).sum(axis=1).tolist() for trace in traces]),
        numbers={},
    )


def pick(errors: np.ndarray, most: int) -> list[int]:
    """Steps to show of [steps, cells]: first, last, and those after the largest changes of what is wrong."""
    steps = len(errors)
    if steps <= most:
        return list(range(steps))
    change = np.abs(np.diff(errors.astype(int), axis=0)).sum(axis=1)
    order = np.argsort(-change, kind="stable") + 1
    inner = [int(step) for step in order if 0 < step < steps - 1][: most - 2]
    return sorted({0, steps - 1, *inner})


def _grid(axes: Axes, trace: Mapping[str, Any], tokens: Any, bad: np.ndarray, task: str) -> None:
    """One puzzle's cells."""
    rows, columns = shape(trace)
    size = 0.55 * 72 * (TWO / 7.5) / max(rows, columns)
    for index, token in enumerate(tokens):
        row, column = divmod(index, columns)
        y = rows - 1 - row
        given = task != "arc" and clue(int(trace["question"][index]), task)
        face = WRONG if bad[index] else GIVEN if given else "white"
        text = glyph(int(token), task)
        if task == "maze":
            face = MAZE_WALL if text == "#" else "#9CCBE8" if text == "o" and not bad[index] else face
            text = "" if text in "# o" else text
        ink = "black" if given else "#a3001c" if bad[index] else OKABE_ITO[0]
        if task == "arc" and token >= 2:
            face = ARC[int(token) - 2]
            ink = "black" if sum(to_rgb(face)) > 1.6 else "white"
        axes.add_patch(Rectangle((column, y), 1, 1, facecolor=face, edgecolor="#c9c9c4", linewidth=0.3))
        if text:
            axes.text(
                column + 0.5,
                y + 0.46,
                text,
                ha="center",
                va="center",
                fontsize=min(9.0, size * 1.25),
                color=ink,
                fontweight="bold" if given else "normal",
            )
        if bad[index]:
            axes.plot([column + 0.12, column + 0.88], [y + 0.12, y + 0.88], color="#a3001c", linewidth=0.5)
    height, width = boxes(trace["data"])
    for place in range(0, rows + 1, height or rows):
        axes.plot([0, columns], [place, place], color="#333333", linewidth=0.8)
    for place in range(0, columns + 1, width or columns):
        axes.plot([place, place], [0, rows], color="#333333", linewidth=0.8)
    axes.set_xlim(-0.05, columns + 0.05)
    axes.set_ylim(-0.05, rows + 0.05)
    axes.set_aspect("equal")
    axes.set_axis_off()
