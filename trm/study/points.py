"""A study at one scale: its experiments, their grid points, and the runs and evaluations that measure them."""

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
        return f"evaluation-{evaluation_fingerprint(self.evaluation)[:8]}.json"

    @property
    def evaluations(self) -> list[str]:
        """`<run>/<file>` of each run's evaluation."""
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
    """The study at one scale."""

    name: str
    scale_name: str
    scale: Scale
    experiments: dict[str, ResolvedExperiment]
    figures: list[dict[str, Any]]
    runs: dict[str, Run] = field(default_factory=dict)
    evaluations: dict[str, EvaluationConfig] = field(default_factory=dict)
    log_every: dict[str, int] = field(default_factory=dict)
    """Runs whose experiments want finer curves than the scale's."""
    variables: frozenset[str] = frozenset()
    """Names that the study file reads as `$name` or `needs`, set by `--config NAME=...`."""
    replaced_figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Experiment -> its own figures, where the scale gives others."""
    phases: list[str] = field(default_factory=list)
    """Phases, in the order in which a grant is spent."""
    recipe: Flat = field(default_factory=dict)
    """The scale's recipe before any experiment, dotted key -> value: the baseline of ablations."""

    def experiment(self, name: str) -> ResolvedExperiment:
        """An experiment by its name. Raises UserError with the nearest name."""
        if name not in self.experiments:
            raise UserError(
                f"no experiment {name!r} at scale {self.scale_name}{nearest(name, self.experiments)} (`python -m trm "
                f"study list`; a name from an older document: `python -m trm study find {name}`)"
            )
        return self.experiments[name]

    def why_skipped(self, name: str) -> str:
        """Why an experiment is not run, as a sentence."""
        return f"{self.experiment(name).name} is not run at scale {self.scale_name}: {self.experiment(name).skip}"

    def selected(self, which: str) -> list[str]:
        """Names of the experiments of `report` or `study` at this scale, without the skipped ones."""
        names = getattr(self.scale, which) or list(self.experiments)
        return [name for name in names if not self.experiment(name).skip]
