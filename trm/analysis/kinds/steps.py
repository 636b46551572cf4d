"""`steps`: puzzles solved step by step, one grid per supervision step, wrong cells marked."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trm.analysis.lazy import Axes, Table, common, mpl, np
from trm.analysis.specs import Figure
from trm.analysis.words import count, number, point_name
from trm.errors import UserError
from trm.study.tasks import spec_of

GIVEN, WRONG = "#ececE7", "#FBD9D3"
GOOD, BAD = "#00664b", "#a3001c"
STEPS = 6
"""Supervision steps shown of each puzzle (the first, the last, and where the answer changes most)."""
LARGEST = 1.6
"""Most inches of one grid's side."""


class Spec(Figure):
    """A row for each puzzle: the question, then chosen steps."""

    kind: Literal["steps"] = "steps"
    reads: ClassVar[tuple[str, ...]] = ("traces",)
    reading: ClassVar[str] = "answers after each supervision step; wrong cells are marked"
    puzzles: Annotated[int, Field(ge=1, le=8)] = 3


def steps_sentence(errors: Sequence[Sequence[int]]) -> str:
    """errors: wrong cells after each step, one list per puzzle."""
    solved = [puzzle for puzzle in errors if puzzle[-1] == 0]
    text = f"Of {count(len(errors), 'puzzle')} traced, {len(solved)} {'is' if len(solved) == 1 else 'are'} solved"
    if solved:
        first = [puzzle.index(0) + 1 for puzzle in solved]
        text += f", on average after {number(sum(first) / len(first), 2)} steps"
    lost = sum(0 in puzzle[:-1] and puzzle[-1] > 0 for puzzle in errors)
    verb = "was" if lost == 1 else "were"
    return text + (f"; {lost} {verb} right at an earlier step and lost again" if lost else "") + "."


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    from trm.analysis.traces import interesting, task_name, wrong

    table = tables[0]
    rows = table.select(spec.where)
    traces = [trace for trace in table.info.get("traces", []) if trace["run"] in set(rows["run"])]
    if not traces:
        raise UserError(f"no evaluation of {table.experiment} kept traces: set evaluation.traces")
    chosen = interesting(traces, spec.puzzles)
    columns = 1 + min(STEPS, max(len(trace["steps"]) for trace in chosen))
    cell = min(LARGEST, common.TWO / columns)
    models = rows.drop_duplicates("run").set_index("run")
    clues = spec_of(task_name(chosen[0])).blank is not None
    height = cell + (0.3 if len(models) == 1 else 0.45)
    figure, axes = common.canvas(common.TWO, height * len(chosen) + 0.1, len(chosen), columns)
    for line, trace in zip(axes, chosen):
        title = {"fontsize": common.SMALL, "fontweight": "normal", "loc": "center", "pad": 3}
        _grid(line[0], trace, trace["question"], np.zeros(len(trace["answer"]), bool))
        line[0].set_title("question", **title)
        if len(models) > 1:
            point, seed = models.loc[trace["run"], ["label", "seed"]]
            name = textwrap.shorten(f"{point_name(point)}, seed {seed}", 60, placeholder=" …")
            line[0].set_title(common.plain(name) + "\n", **title | {"loc": "left", "fontweight": "bold"})
        errors = wrong(trace)
        picked = pick(errors, columns - 1)
        for axis, step in zip(line[1:], picked):
            _grid(axis, trace, trace["steps"][step], errors[step])
            lost = int(errors[step].sum())
            words = f"step {step + 1}: {f'{lost} wrong' if lost else 'solved'}"
            axis.set_title(words, color=BAD if lost else GOOD, **title)
        for axis in line[1 + len(picked) :]:
            axis.set_axis_off()
    return common.Drawing(
        figure,
        rows[rows["run"].isin({trace["run"] for trace in chosen})],
        title="Puzzles solved step by step",
        caption=(
            f"One puzzle a row{' under its model' * (len(models) > 1)}: first and last step, and those with "
            f"most changes.{' Grey: given.' * clues} Red with a cross is wrong."
        ),
        remarks=steps_sentence([wrong(trace).sum(axis=1).tolist() for trace in traces]),
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


def _grid(axes: Axes, trace: Mapping[str, Any], tokens: Any, bad: np.ndarray) -> None:
    from trm.analysis.traces import boxes, shape, task_name

    task = spec_of(task_name(trace))
    rows, columns = shape(trace)
    size = min(9.0, 0.55 * 72 * 1.25 * (common.TWO / 7.5) / max(rows, columns))
    squares, faces, crosses = [], [], []
    for index, token in enumerate(tokens):
        row, x = divmod(index, columns)
        y = rows - 1 - row
        given = task.is_given(trace["question"][index])
        text, colour = task.cell(token, bool(bad[index]))
        face = colour or (WRONG if bad[index] else GIVEN if given else "white")
        ink = "black" if given else BAD if bad[index] else common.OKABE_ITO[0]
        if colour:
            ink = "black" if sum(mpl.colors.to_rgb(face)) > 1.6 else "white"
        squares.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
        faces.append(face)
        if text:
            symbol = axes.text(x + 0.5, y + 0.46, text, color=ink, fontsize=size, ha="center", va="center")
            symbol.set_fontweight("bold" if given else "normal")
            symbol.set_in_layout(False)  # inside its cell: measuring each takes longer than drawing it
        if bad[index]:
            crosses.append([(x + 0.12, y + 0.12), (x + 0.88, y + 0.88)])
    height, width = boxes(trace)
    edges = [[(0, place), (columns, place)] for place in range(0, rows + 1, height or rows)]
    edges += [[(place, 0), (place, rows)] for place in range(0, columns + 1, width or columns)]
    polygons, lines = mpl.collections.PolyCollection, mpl.collections.LineCollection
    axes.add_collection(polygons(squares, facecolors=faces, edgecolors="#c9c9c4", linewidths=0.3))
    axes.add_collection(lines(crosses, colors=BAD, linewidths=0.5))
    axes.add_collection(lines(edges, colors="#333333", linewidths=0.8, capstyle="projecting"))
    axes.set_xlim(-0.05, columns + 0.05)
    axes.set_ylim(-0.05, rows + 0.05)
    axes.set_aspect("equal")
    axes.set_axis_off()
