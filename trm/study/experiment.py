"""The typed form of config/experiments.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from trm.study.schema import Count, RuntimeConfig, Section

Seed = Annotated[int, Field(strict=True)]  # YAML's `yes` is no seed

Overlay = dict[str, Any]
"""Nested sections (`model: {d_model: 64}`) or dotted keys (`model.d_model: 64`), merged over the lower level."""


class Grid(Section):
    """Points of an experiment: all combinations of the `product` values, the `zip` rows and the `points`."""

    set: Overlay = {}
    """Values shared by every point of this grid."""
    product: dict[str, list[Any]] = {}
    """Dotted key -> values; every combination is a point."""
    zip: dict[str, list[Any]] = {}
    """Dotted key -> values; all lists have the same length, and their k-th values form the k-th point."""
    points: list[Overlay] = []
    """Single points as dotted keys, each with an optional `label`."""
    label: str = ""
    """Common to the points of this grid; appended to their labels in brackets if the experiment has several grids.
    Empty: the values of `set`."""
    seeds: list[Seed] | None = None
    """Seeds of this grid; null: the experiment's."""
    needs: str | None = None
    """Name of a `--config NAME=...` without which this grid is left out (another machine or interpreter)."""

    @field_validator("zip")
    @classmethod
    def _equal_lengths(cls, value: dict[str, list[Any]]) -> dict[str, list[Any]]:
        lengths = {key: len(items) for key, items in value.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"zipped lists must have the same length, not {lengths}")
        return value


class ExperimentScale(Section):
    """Changes of an experiment at one scale."""

    set: Overlay | None = None
    """Values of every point, merged over the scale's base."""
    grid: list[Grid] | None = None
    """The points; at a scale they replace the experiment's."""
    seeds: list[Seed] | None = None
    """Seeds; null: the scale's."""
    evaluation: Overlay | None = None
    """How its runs are evaluated, merged over the scale's defaults."""
    log_every: Count | None = None
    """Steps between metrics rows, for finer curves than the scale's; not part of a run's identity."""
    figures: list[dict[str, Any]] | None = None
    """Figure specifications; at a scale they replace the experiment's."""
    expects: list[dict[str, Any]] | None = None
    """What the hypothesis predicts: the checks from which the report says supported, contradicted or undecided."""
    skip: str | None = None
    """Why this experiment is not run at this scale; shown in the report."""
    question: str | None = None
    """The question, if this scale asks another one."""
    hypothesis: str | None = None
    """The hypothesis, if this scale tests another one."""
    hypothesis_needs: dict[str, Any] = {}
    """Column -> value or values that the hypothesis is about; the report says if the grid has none of them."""

    @field_validator("grid", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value


class Experiment(ExperimentScale):
    """One question, the grid of runs that answers it, and its figures."""

    question: str
    """One sentence that ends with a question mark."""
    hypothesis: str = ""
    """The expected result, written before the run."""
    phase: str = ""
    """The phase of the study, one of `phases`."""
    figures: list[dict[str, Any]] = []
    """Figure specifications (trm.analysis.specs)."""
    scales: dict[str, ExperimentScale] = {}
    """Changes at single scales."""

    def whose_figures(self, scale: str) -> str:
        """Which list of figures holds at a scale, and what becomes of the experiment's own, as a sentence."""
        own = sorted(name for name, here in self.scales.items() if here.figures is not None)
        if scale not in own:
            return "the experiment's list" + (f", which {', '.join(own)} replace" if own else "")
        return f"the list of scales.{scale}.figures, which replaces the experiment's"

    def at_scale(self, scale: str) -> Experiment:
        """The experiment at a scale: what the scale gives replaces its own, except for `set` and `evaluation`."""
        here = self.scales.get(scale, ExperimentScale())
        names = ("grid", "seeds", "log_every", "figures", "skip", "question", "hypothesis", "expects")
        given = {name: value for name in names if (value := getattr(here, name)) is not None}
        if here.hypothesis is not None or here.hypothesis_needs:
            given["hypothesis_needs"] = here.hypothesis_needs
        if here.hypothesis is not None:
            given["expects"] = here.expects
        return self.model_copy(update=given)


class Scale(Section):
    """A size of the study, chosen by the profile: how the base recipe changes."""

    about: str = ""
    """The task and what is small about it, in one sentence; the first lines of the report."""
    base: Overlay = {}
    """Merged over the study's base."""
    seeds: list[Seed] = [0, 1, 2]
    """Seeds of every experiment that gives none."""
    evaluation: Overlay = {}
    """Defaults of all evaluations."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Logging and checkpoints; not part of a run's identity."""
    hardware: str = "cpu"
    """Key of config/hardware.yaml, used for cost estimates."""
    threads: Count = 1
    """CPU threads of a training job."""
    report: list[str] = []
    """Experiments of `make report`; empty: all."""
    study: list[str] = []
    """Experiments of `make study`; empty: all that are not skipped."""


RULES = {
    *("all", "source", "dataset", "train", "evaluate", "table", "fit", "plot", "publish", "html_report"),
    *("preflight", "report", "study"),
}
"""Reserved names: Snakemake's rules and the two selections."""
NAME = re.compile(r"[A-Za-z0-9_]+")


class StudyFile(Section):
    """config/experiments.yaml."""

    study: str
    """Name of the study; shown in every figure's footer."""
    base: Overlay = {}
    """The recipe that every experiment varies, merged over the schema's defaults (the paper's recipe)."""
    scales: dict[str, Scale] = Field(min_length=1)
    """Sizes of the study by name."""
    experiments: dict[str, Experiment] = Field(min_length=1)
    """Experiments by name."""
    phases: list[str] = []
    """Phases of the study, in the order in which a grant is spent (`--grant-days`)."""
    figures: list[dict[str, Any]] = []
    """Figures that combine several experiments."""

    @model_validator(mode="after")
    def _known_phases(self) -> StudyFile:
        for name, experiment in self.experiments.items():
            if experiment.phase and experiment.phase not in self.phases:
                raise ValueError(
                    f"experiment {name}: phase {experiment.phase!r} is not one of `phases`: {', '.join(self.phases)}"
                )
        return self

    @field_validator("experiments")
    @classmethod
    def _names(cls, value: dict[str, Experiment]) -> dict[str, Experiment]:
        alike: dict[str, str] = {}
        for name in value:
            if name in RULES:
                raise ValueError(f"{name!r} is the name of a rule of the pipeline; choose another")
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r}: names consist of letters, digits and _, such as data_size")
            if (other := alike.setdefault(name.lower(), name)) != name:
                raise ValueError(
                    f"{other!r} and {name!r} differ in case only: their files are the same on macOS"
                )
        return value
