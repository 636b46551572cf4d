"""What is checked before anything runs, beyond the schema: figures against what runs record, sizes against pools."""

from __future__ import annotations

from typing import Any

from trm.errors import UserError
from trm.pipeline.naming import Figure
from trm.study.grid import ResolvedExperiment
from trm.study.merge import nearest
from trm.study.schema import DataConfig
from trm.training.history import COLUMNS

CLASSES_4X4 = dict(zip(range(4, 16), (13, 96, 376, 711, 1040, 980, 788, 414, 210, 56, 22, 2)))
"""Classes of 4x4 Sudoku with one solution by their number of clues (`trm.tasks.sudoku.small.classes_4x4`)."""
OFFICIAL = {"sudoku": (3_831_994, 422_786), "maze": (1_000, 1_000)}
"""Puzzles of the published data sets: for training and validation, and for testing."""
TO_TARGET = ("steps_to_target", "rows_to_target", "flops_to_target")


def check_figure(figure: Figure, where: str) -> None:
    """Refuse a figure whose curves no run records, or whose metric it cannot measure.

    Raises:
        UserError: names the figure, the name and the nearest known one.
    """
    spec: Any = figure.spec
    known = [name for name in COLUMNS if "/" in name]
    columns = list(getattr(spec, "metrics", ())) + ([spec.metric] if spec.kind == "curves" else [])
    for column in columns:
        if column not in known:
            raise UserError(
                f"{where}: figure {figure.stem}: unknown metric {column!r}{nearest(column, known)}; history.csv has "
                f"{', '.join(known)}"
            )
    for panel in (spec, *getattr(spec, "panels", ())):
        for name in (getattr(panel, "y", None), *getattr(panel, "second", ())):
            if name in TO_TARGET and spec.kind != "batch":
                raise UserError(
                    f"{where}: figure {figure.stem}: {name} needs a target: use a figure of kind batch"
                )


def check_sizes(experiment: ResolvedExperiment, where: str) -> None:
    """Refuse an experiment with a data set of more puzzles than its pool can hold.

    Raises:
        UserError: names the experiment and the numbers.
    """
    for point in experiment.points:
        sentence = too_many(point.runs[0].config.data)
        if sentence:
            raise UserError(f"{where}: experiment {experiment.name}, point {point.label}: {sentence}")


def too_many(data: DataConfig) -> str:
    """Why a pool cannot give the puzzles that are asked for; empty if it can, or if only its files tell."""
    train, held_out = data.train_puzzles or 0, data.validation_puzzles
    test = data.test_puzzles or 0
    if data.source == "official" and data.task in OFFICIAL:
        most, most_test = OFFICIAL[data.task]
        name = f"the official {data.task} data set"
        if test > most_test:
            return f"{name} has {most_test:,} test puzzles, not {test:,}: lower data.test_puzzles"
        if train + held_out > most:
            return (
                f"{name} has {most:,} puzzles for training and validation, not {train:,} + {held_out:,}: lower "
                "data.train_puzzles"
            )
        return ""
    if data.source != "generate":
        return ""
    most, name = data.pool, "data.pool"
    if data.task == "sudoku" and (data.box_rows, data.box_cols) == (2, 2) and data.clues_max:
        classes = sum(CLASSES_4X4.get(clues, 0) for clues in range(data.clues_min, data.clues_max + 1))
        if not most or classes < most:
            most, name = classes, f"4x4 Sudoku of {data.clues_min} to {data.clues_max} clues, up to symmetry,"
    if most and train + held_out + test > most:
        wanted = f"{train:,} for training, {held_out:,} for validation and {test:,} for testing"
        return f"{name} has {most:,} puzzles, not {train + held_out + test:,} ({wanted}): lower the numbers"
    return ""
