"""A study at one scale: its experiments, their grid points, and the runs and evaluations that measure them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trm.errors import UserError
from trm.study.experiment import Experiment, Scale, StudyFile
from trm.study.fingerprint import evaluation_fingerprint, evaluation_marks
from trm.study.merge import Flat, nearest
from trm.study.schema import EvaluationConfig, RunConfig, RuntimeConfig


@dataclass(frozen=True)
class Run:
    """One training run; `name` is its folder and its identity."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Point:
    """One grid point of an experiment: what varies, the runs (one per seed) and their evaluation."""

    coords: dict[str, Any]
    label: str
    runs: tuple[Run, ...]
    evaluation: EvaluationConfig

    @cached_property
    def evaluation_file(self) -> str:
        """File name of the evaluation inside each run's folder."""
        marks = evaluation_marks(self.runs[0].config.data)
        return f"evaluation-{evaluation_fingerprint(self.evaluation, marks)[:8]}.json"

    @property
    def evaluations(self) -> list[str]:
        """`<run>/<file>` of each run's evaluation."""
        return [f"{run.name}/{self.evaluation_file}" for run in self.runs]


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment at one scale."""

    name: str
    definition: Experiment
    grid_at: str
    figures_at: str
    """FILE:LINE of the lists of points and figures, or of the experiment if it gives none."""
    points: tuple[Point, ...] = ()
    skip: str | None = None
    left_out: tuple[str, ...] = ()
    """Why grids were left out, in words."""

    @cached_property
    def runs(self) -> set[str]:
        return {run.name for point in self.points for run in point.runs}

    def point(self, name: str) -> Point:
        """A grid point by its label, or by a value in its label (`1000` for `train_puzzles=1000`).

        Raises:
            UserError: no point or several match; the message lists the labels.
        """
        matches = [point for point in self.points if point.label == name]
        if not matches:
            for point in self.points:
                parts = point.label.split(", ")
                if name in parts or name in [part.partition("=")[2] for part in parts]:
                    matches.append(point)
        if len(matches) != 1:
            labels = "; ".join(point.label for point in self.points)
            what = f"{len(matches)} points match" if matches else "no point matches"
            raise UserError(f"{self.name}: {what} {name!r}; there are: {labels}")
        return matches[0]


@dataclass
class Study:
    """A study at one scale."""

    file: StudyFile
    path: str
    scale_name: str
    scale: Scale
    places: dict[tuple[str, ...], str]
    """Key path -> FILE:LINE."""
    experiments: dict[str, ResolvedExperiment] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    evaluations: dict[str, EvaluationConfig] = field(default_factory=dict)
    runtime: dict[str, RuntimeConfig] = field(default_factory=dict)
    """By run: the scale's, with the values that its experiments replace."""
    recipe: Flat = field(default_factory=dict)
    """The recipe before any experiment, dotted key -> value: the baseline of ablations."""

    def place(self, experiment: str, key: str) -> str:
        """`FILE:LINE` of a key of an experiment, or of the experiment if it does not have the key."""
        return self.places.get(("experiments", experiment, key)) or self.places[("experiments", experiment)]

    def experiment(self, name: str) -> ResolvedExperiment:
        """An experiment by its name. Raises UserError with the nearest name."""
        if name not in self.experiments:
            raise UserError(f"{self.path} has no experiment {name!r}{nearest(name, self.experiments)}")
        return self.experiments[name]

    def why_skipped(self, name: str) -> str:
        """Why an experiment is not run, as a sentence."""
        return f"{self.experiment(name).name} is not run: {self.experiment(name).skip}"

    def selected(self, which: str) -> list[str]:
        """Names of the experiments of `report` or `study`, without the skipped ones."""
        names = getattr(self.file, which) or self.experiments
        return [name for name in names if not self.experiment(name).skip]
