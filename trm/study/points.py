"""A study at one scale: its experiments, their grid points, and the runs and evaluations that measure them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trm.errors import UserError
from trm.study.experiment import Experiment, Scale
from trm.study.fingerprint import evaluation_fingerprint
from trm.study.merge import Flat, nearest
from trm.study.schema import EvaluationConfig, RunConfig


@dataclass(frozen=True)
class Run:
    """One training run. `name` is its folder and its identity."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Point:
    """One grid point of an experiment: what was varied, and the runs (one a seed) and evaluation that measure it."""

    coords: dict[str, Any]
    label: str
    runs: tuple[Run, ...]
    evaluation: EvaluationConfig

    @cached_property
    def evaluation_file(self) -> str:
        """File name of the evaluation inside each run's folder."""
        return f"evaluation-{evaluation_fingerprint(self.evaluation)[:8]}.json"

    @property
    def evaluations(self) -> list[str]:
        """`<run>/<file>` of the evaluation of each run."""
        return [f"{run.name}/{self.evaluation_file}" for run in self.runs]


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment at one scale."""

    name: str
    definition: Experiment
    points: tuple[Point, ...]
    figures: tuple[dict[str, Any], ...]
    skip: str | None = None
    left_out: tuple[str, ...] = ()
    """What is missing for grids that were left out, in words."""

    def point(self, name: str) -> Point:
        """A grid point by its label, or by a value in its label (`1000` for `train_puzzles=1000`).

        Raises:
            UserError: none or several are meant; the message lists the labels.
        """
        found = [point for point in self.points if point.label == name]
        if not found:
            for point in self.points:
                parts = point.label.split(", ")
                if name in parts or name in [part.partition("=")[2] for part in parts]:
                    found.append(point)
        if len(found) != 1:
            labels = "; ".join(point.label for point in self.points)
            what = f"{len(found)} points match" if found else "no point matches"
            raise UserError(f"{self.name}: {what} {name!r}; there are: {labels}")
        return found[0]


@dataclass
class Study:
    """The whole study at one scale."""

    name: str
    scale_name: str
    scale: Scale
    experiments: dict[str, ResolvedExperiment]
    figures: list[dict[str, Any]]
    aliases: dict[str, str]
    points: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Older documents' name of a point -> its experiment and label."""
    runs: dict[str, Run] = field(default_factory=dict)
    evaluations: dict[str, EvaluationConfig] = field(default_factory=dict)
    log_every: dict[str, int] = field(default_factory=dict)
    """Runs whose experiments ask for finer curves than the scale does."""
    variables: frozenset[str] = frozenset()
    """Names that the study's file reads as `$name` or `needs`; `--config NAME=...` sets them."""
    phases: list[str] = field(default_factory=list)
    """In the order in which a grant is spent."""
    recipe: Flat = field(default_factory=dict)
    """The scale's own recipe, before any experiment: dotted key -> value; what ablations compare with."""

    @property
    def names(self) -> list[str]:
        """Names and aliases of experiments, and those of single points."""
        return [*self.experiments, *self.aliases, *self.points]

    def find(self, name: str) -> tuple[ResolvedExperiment, Point | None]:
        """What a name means: an experiment, or one point of it.

        Raises:
            UserError: an unknown name, or a point that this scale lacks.
        """
        if name not in self.points:
            return self.experiment(name), None
        owner, label = self.points[name]
        experiment = self.experiments[owner]
        return experiment, None if experiment.skip else experiment.point(label)

    def experiment(self, name: str) -> ResolvedExperiment:
        """An experiment by its name or by an older document's id."""
        known = self.aliases.get(name, name)
        if known in self.points:
            owner, label = self.points[known]
            raise UserError(
                f"{name} is one point of {owner} ({label}): `python -m trm study run {name}` runs it"
            )
        if known not in self.experiments:
            hint = nearest(name, self.names)
            raise UserError(
                f"no experiment {name!r} at scale {self.scale_name}{hint} (`python -m trm study list`)"
            )
        return self.experiments[known]

    def why_skipped(self, name: str) -> str:
        """A sentence on an experiment that is not run."""
        return f"{self.experiment(name).name} is not run at scale {self.scale_name}: {self.experiment(name).skip}"

    def selected(self, which: str) -> list[str]:
        """Names of the experiments of `report` or `study` at this scale; skipped ones are left out."""
        names = getattr(self.scale, which) or list(self.experiments)
        return [name for name in names if not self.experiment(name).skip]
