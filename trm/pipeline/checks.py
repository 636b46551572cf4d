"""What is checked before anything runs, beyond the schema: figures against what runs record, sizes against pools."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trm.analysis.specs import Check
from trm.errors import UserError
from trm.io import read_json
from trm.pipeline.catalogue import Figure
from trm.study.merge import nearest
from trm.study.points import ResolvedExperiment, Study
from trm.study.reading import error_sentence
from trm.study.schema import DataConfig, RunConfig
from trm.study.tasks import spec_of
from trm.training.history import COLUMNS

LISTS = ".snakemake/trm-figures-{}.json"
"""Where a launch at a scale notes the lists of figures that the scale replaces."""
TO_TARGET = ("steps_to_target", "rows_to_target", "flops_to_target")


def check_expectations(experiment: ResolvedExperiment, where: str) -> None:
    """Refuse an `expects` that the report could not decide. UserError: names the experiment and the key."""
    for fields in experiment.definition.expects or ():
        try:
            Check.model_validate(fields)
        except ValidationError as error:
            raise UserError(
                f"{where}: experiment {experiment.name}: expects: {error_sentence(error, Check)}"
            ) from error


def _is_text(column: str) -> bool:
    """Whether a column holds words, as labels and names do."""
    section, _, key = column.partition(".")
    return column == "label" or isinstance(getattr(getattr(RunConfig(), section, None), key, None), str)


def check_figure(figure: Figure, where: str) -> None:
    """Refuse a figure whose curves no run records, whose metric it cannot measure, or whose law is one of words.
    UserError: names the figure, the name and, if there is one, the nearest known name."""
    for column in (name for fit in figure.fits for name in (fit.spec.x, fit.spec.second) if name):
        if _is_text(column):
            raise UserError(
                f"{where}: figure {figure.stem}: {column} is not a number: no law or optimum can be fitted over it"
            )
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


def edited_in_vain(study: Study, where: str) -> list[str]:
    """A sentence for each experiment whose list of figures was edited since the last launch, but is not the one that
    holds at this scale."""
    path = Path(LISTS.format(study.scale_name))
    known = read_json(path) if path.exists() else {}
    return [
        f"{where}: experiment {name}: `figures` was edited, but scales.{study.scale_name}.figures replaces it at this "
        f"scale: edit that list"
        for name, figures in study.replaced_figures.items()
        if known.get(name, figures) != figures
    ]


def check_sizes(experiment: ResolvedExperiment, where: str) -> None:
    """Refuse an experiment with a data set of more puzzles than its pool can hold. UserError: names the experiment and
    the numbers."""
    for point in experiment.points:
        sentence = too_many(point.runs[0].config.data)
        if sentence:
            raise UserError(f"{where}: experiment {experiment.name}, point {point.label}: {sentence}")


def too_many(data: DataConfig) -> str:
    """Why a pool has too few puzzles; empty if it has enough, or if only its files show it."""
    train, held_out, test = data.train_puzzles or 0, data.validation_puzzles, data.test_puzzles or 0
    spec = spec_of(data.task)
    if data.source == "official" and spec.published:
        most, most_test = spec.published
        name = f"the official {data.task} data set"
        if test > most_test:
            return f"{name} has {most_test:,} test puzzles, not {test:,}: lower data.test_puzzles"
        if train + held_out > most:
            return (
                f"{name} has {most:,} puzzles for training and validation, not {train:,} + {held_out:,}: lower "
                "data.train_puzzles"
            )
    if data.source != "generate":
        return ""
    most, name, classes = data.pool, "data.pool", spec.most_generated(data)
    if classes and (not most or classes < most):
        most, name = classes, f"{data.task} of this size and kind, up to symmetry,"
    if most and train + held_out + test > most:
        wanted = f"{train:,} for training, {held_out:,} for validation and {test:,} for testing"
        return f"{name} has {most:,} puzzles, not {train + held_out + test:,} ({wanted}): lower the numbers"
    return ""
