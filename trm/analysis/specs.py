"""What the commands of the analysis read: figures, fits, tables and the report, typed and strict.

The Snakefile validates and hashes these models, so nothing here imports numpy. Each kind of figure declares its own
specification in `trm/analysis/kinds/`; `trm.analysis.kinds.FIGURE` parses any of them. Columns are metrics (`error`),
derived quantities (`parameters`, `train_flops`) or configuration keys (`data.train_puzzles`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from trm.analysis.labels import DERIVED, METRICS, config_keys, label
from trm.study.merge import nearest
from trm.study.reading import NO_FORMULA

SAME = ("point", "evaluation", "split", "policy", "eval_steps", "restarts")
"""Columns that two seeds of one measurement share, and no two measurements: a point of a fit or a figure is these,
never a value on an axis, which two configurations may share."""
EQUAL = 1.1
"""Computed values, such as FLOPs, that differ by less than this factor are one: runs of a budget end at whole steps."""
LEAST = 4
"""Fewest values of `x` of one budget that can have an optimum, and fewest optima whose logarithms can bend."""
Scalar = bool | int | float | str | None
Form = Literal["constant", "power_law", "power_law_floor", "exponential", "sigmoid"]
"""constant: e = E; power_law: e = A x^-a; power_law_floor: e = E + A x^-a; its rivals: exponential e = E + A exp(-x/s)
and sigmoid e = E + A / (1 + (x/m)^k), m within the data."""
Surface = Literal["joint", "repeated_data"]
VARIABLES: dict[str, tuple[str, ...]] = {
    "joint": ("parameters", "train_flops"),
    "repeated_data": ("data.train_puzzles", "data.augmentations"),
}
"""Laws of two variables, and these."""


def _known(what: str, names: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value in names:
            return value
        raise ValueError(f"unknown {what} {value!r}{nearest(value, names)}")

    return AfterValidator(check)


_COLUMNS = (*DERIVED, *config_keys(), *METRICS)
Column = Annotated[str, _known("column", _COLUMNS)]
Metric = Annotated[str, _known("metric", tuple(METRICS))]


def minimised(metric: str) -> str:
    """The metric, whose lowest value is the best. ValueError: its highest is."""
    if label(metric).lower:
        return metric
    raise ValueError(
        f"a fit of the best value seeks the lowest {metric}, but its highest is the best: take error or cross_entropy"
    )


Minimised = Annotated[Metric, AfterValidator(minimised)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Where = dict[Annotated[str, _known("column", (*_COLUMNS, "policy", "split", "restarts", "seed"))], Scalar]


class Spec(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FitSpec(Spec):
    """One fit. Its canonical JSON is the identity of a fit.json."""

    experiments: tuple[str, ...] = ()
    """Experiments whose tables are read together; empty: every table given."""
    form: Form | Surface | Literal["auto", "critical_batch", "optimum", "isoflop"] = "auto"
    """The law. auto: the best of a constant and the power laws; repeated_data: Muennighoff et al. 2023 with U = `x` and
    R = `second`; joint: E + A N^-a + B C^-b with N = `x`, C = `second`; critical_batch: S = Smin (1 + B*/B); optimum:
    the best `x` for every `second`, then a power law of it; isoflop: the same by a parabola through every `x` of a
    budget."""
    x: Column = "data.train_puzzles"
    """The law's variable."""
    y: Metric = "error"
    """What is fitted, in log space."""
    second: Column | None = None
    """Second variable of all forms with two."""
    hue: Column | None = None
    """One fit for each value of this column."""
    where: Where = {}
    """Only rows with these values."""
    bootstrap: Annotated[int, Field(ge=1)] = 1000
    """Refits of the hierarchical bootstrap."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the bootstrap."""
    target: Fraction | None = None
    """Accuracy whose cost the fit also answers."""
    best: bool = False
    """Fit only the grid points on the lower envelope: those with the best error for any `x`."""

    @model_validator(mode="after")
    def _second(self) -> FitSpec:
        if self.form in (*VARIABLES, "optimum", "isoflop") and not self.second:
            raise ValueError(f"form={self.form} needs `second`, its second variable")
        if self.form in ("optimum", "isoflop"):
            minimised(self.y)
        return self


class Reported(Spec):
    """A published value: drawn grey, never fitted."""

    x: float
    """Place on the x axis."""
    y: float
    """Value in the figure's metric (error as a share of one)."""
    label: str = "paper"
    """Text beside the mark."""


class Figure(Spec):
    """What every kind of figure has in common."""

    reading: ClassVar[str]
    """How to read the figure, in one line for docs/experiments.md."""
    reads: ClassVar[tuple[str, ...]] = ()
    """What it reads of a table besides the rows: curves (histories), or bins, guess, halting, traces of the sidecar."""

    @property
    def histories(self) -> tuple[str, ...]:
        """Columns of the histories that it shows, where `reads` has curves."""
        return ()

    kind: str
    name: str | None = None
    """File name; null: the kind and what distinguishes it."""
    title: str | None = None
    """Heading; null: written from the columns."""
    where: Where = {}
    """Only rows with these values."""

    @field_validator("title")
    @classmethod
    def _no_formula(cls, value: str | None) -> str | None:
        if value and "$" in value:
            raise ValueError(f"{value!r}: {NO_FORMULA}")
        return value

    @field_validator("name")
    @classmethod
    def _file_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_]+", value):
            raise ValueError(f"{value!r}: names consist of letters, digits and _, such as data_size")
        return value

    @property
    def slug(self) -> str:
        """A file name, unique among differently drawn figures of an experiment."""
        if self.name:
            return self.name
        parts = [self.kind]
        for field in ("form", "x", "y", "metric", "hue", "by"):
            value = getattr(self, field, None)
            default = type(self).model_fields[field].default if field in type(self).model_fields else None
            if isinstance(value, str) and (value != default or field == "x"):
                parts.append(value.rsplit(".", 1)[-1].replace("/", "-"))
        return "-".join(parts)

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        """The fits that this figure of `experiment` reads."""
        return ()

    def experiments(self, experiment: str) -> tuple[str, ...]:
        """The experiments whose tables this figure of `experiment` reads."""
        return (experiment,)

    def alone(self) -> Sequence[Figure]:
        """Its panels as figures of their own, where each can stand alone."""
        return ()


class TableRun(Spec):
    """One run of a grid point."""

    run: str
    seed: int
    directory: str
    """Folder with training.json, history.csv and the evaluations."""
    evaluations: tuple[str, ...] = ()
    """File names inside `directory`; the first is the one that counts."""


class TablePoint(Spec):
    """One point of the grid: its coordinates and its seeds."""

    coords: dict[str, Any] = {}
    label: str = ""
    """Name of the point. Brackets at its end hold what a block of the grid sets."""
    runs: tuple[TableRun, ...] = Field(min_length=1)


class TableSpec(Spec):
    """What `trm table` reads: one experiment at one scale of one study."""

    name: str
    scale: str
    study: str
    test_steps: Annotated[int, Field(ge=1)] | None = None
    """Supervision steps at test time by which runs are compared; null: 64, or the most below it that all measured."""
    recipe: dict[str, Any] = {}
    """The scale's recipe, dotted key -> value: what ablations that name no baseline compare with."""
    points: tuple[TablePoint, ...] = Field(min_length=1)


class Check(Spec):
    """One thing that a hypothesis predicts; exactly one of `law`, `exponent`, `than` or a bound."""

    metric: Metric = "exact_accuracy"
    where: Where = {}
    """Rows of the experiment; of a law, those that its fit names."""
    than: Where | None = None
    """Rows that those of `where` are predicted to beat, in pairs of seeds."""
    above: float | None = None
    below: float | None = None
    law: Column | None = None
    """A power law of this column is predicted."""
    exponent: Column | None = None
    """The best value of this column at equal compute is predicted to grow as a power of compute."""
    between: tuple[float, float] | None = None
    """Range of the exponent."""

    @model_validator(mode="after")
    def _one(self) -> Check:
        given = [self.law, self.exponent, self.than, self.above if self.above is not None else self.below]
        if sum(item is not None for item in given) != 1:
            raise ValueError("expects: give one of law, exponent, than, or above and below")
        return self


class FailedRun(Spec):
    """A run known to have failed."""

    run: str
    sentence: str = ""
    log: str = ""


class ReportExperiment(Spec):
    """One experiment's section of the report."""

    name: str
    question: str = ""
    hypothesis: str = ""
    expects: tuple[Check, ...] = ()
    """What the hypothesis predicts, so that the report can say whether it holds."""
    table: str
    """Path of its table.csv (the two files beside it are found from the name)."""
    fits: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    """Paths of the figures' PDFs; the PNG and JSON beside them are read."""
    planned_runs: Annotated[int, Field(ge=0)] = 0
    planned_hours: Annotated[float, Field(ge=0)] | None = None
    """Device-hours that the plan expected."""
    failed: tuple[FailedRun, ...] = ()
    rebuild: str = ""
    """The command that builds this experiment."""


class ReportSpec(Spec):
    """What `trm report` reads."""

    study: str
    scale: str
    title: str = "Scaling study of the Tiny Recursive Model"
    question: str = (
        "How does the accuracy of a Tiny Recursive Model depend on its size, its data, its training compute and its "
        "recursion, and where is compute best spent?"
    )
    """What was asked, in one sentence."""
    intro: str = ""
    """A sentence or two on the scale: what is small about it."""
    experiments: tuple[ReportExperiment, ...] = Field(min_length=1)
    figures: tuple[str, ...] = ()
    """Study-wide figures (scaling_laws)."""
    identities: dict[str, str] = {}
    """What the JSON files of figures must hold, by the figures' names; others are not compared."""
    rebuild: str = "snakemake --profile profiles/local"
    """The command that builds the study."""
