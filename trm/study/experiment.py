"""The typed form of a study's file."""

import re
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from trm.study.reading import NO_FORMULA
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
    scale: str | None = None
    """The only scale at which this grid is run: it is about that hardware."""

    @field_validator("zip")
    @classmethod
    def _equal_lengths(cls, value: dict[str, list[Any]]) -> dict[str, list[Any]]:
        lengths = {key: len(items) for key, items in value.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"zipped lists must have the same length, not {lengths}")
        return value


class Experiment(Section):
    """One question, the grid of runs that answers it, and its figures."""

    question: str
    """One sentence that ends with a question mark."""
    hypothesis: str = ""
    """The expected result, written before the run."""
    expects: list[dict[str, Any]] = []
    """What the hypothesis predicts: the checks from which the report says supported, contradicted or undecided."""
    phase: str = ""
    """The phase of the study, one of `phases`."""
    set: Overlay = {}
    """Values of every point, merged over the study's base."""
    grid: list[Grid] = Field(default=[Grid()], min_length=1)
    """The points: one grid or several. Without it, the single point of `base` and `set`."""
    seeds: list[Seed] | None = None
    """Seeds; null: the scale's."""
    evaluation: Overlay = {}
    """How its runs are evaluated, merged over that of `base`."""
    test_steps: Count | None = None
    """Supervision steps at test time by which its runs are compared; null: 64, or the most below it that all
    evaluations measured. Part of no identity but its table's."""
    runtime: Overlay = {}
    """Values in place of the scale's `runtime`, such as `evals` for finer curves; not part of a run's identity. A run
    that experiments share has the finest curves of theirs, and the other values of the first."""
    figures: list[dict[str, Any]] = []
    """Figure specifications (trm.analysis.specs)."""

    @field_validator("grid", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value


class Scale(Section):
    """Where a study runs, chosen by the profile."""

    hardware: str = "cpu"
    """Key of config/hardware.yaml, used for cost estimates."""
    seeds: list[Seed] = [0, 1, 2]
    """Seeds of every experiment that gives none."""
    threads: Count = 1
    """CPU threads of a training job."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Logging and checkpoints; not part of a run's identity."""


RULES = {
    *("all", "source", "dataset", "train", "evaluate", "table", "fit", "plot", "html_report"),
    *("preflight", "report", "study"),
}
"""Reserved names: Snakemake's rules and the two selections."""
NAME = re.compile(r"[A-Za-z0-9_]+")
LONGEST_NAME = 100
"""File names, which hold it with other parts, have at most 255 bytes."""


OF_HYPOTHESIS = ("hypothesis", "expects")
SHARED = ("question", "phase", "figures", *OF_HYPOTHESIS)
"""What an experiment takes from that of the same name in the study that its file extends."""


def inherit(document: dict[str, Any], parent: dict[str, Any]) -> None:
    """Fill in what `extends` shares: phases and figures of the study, and `SHARED` of experiments of the same name.
    What the document gives itself is all that holds; a hypothesis of its own comes without the other's checks."""
    _take(document, parent, {"phases", "figures"})
    for name, own in document["experiments"].items():
        if name in parent["experiments"]:
            kept = OF_HYPOTHESIS if "hypothesis" in own else ()
            _take(own, parent["experiments"][name], set(SHARED).difference(kept))


def _take(own: dict[str, Any], other: dict[str, Any], keys: set[str]) -> None:
    own |= {key: other[key] for key in keys & other.keys() - own.keys()}


class StudyFile(Section):
    """A study: config/experiments.yaml, config/laptop.yaml and their like."""

    name: str
    """Name of the study; shown in every figure's footer."""
    extends: str | None = None
    """A study in the same folder. Experiments of the same name take from it question, phase, hypothesis and figures,
    each unless they give their own; never a grid, a recipe or seeds."""
    about: str = ""
    """The task and what is small about it, as one sentence; the first lines of the report."""
    scales: dict[str, Scale] = Field(min_length=1)
    """Where the study runs, by name; the first one unless the profile names another."""
    report: list[str] = []
    """Experiments of `make report`; empty: all."""
    study: list[str] = []
    """Experiments of `make study`; empty: all."""
    phases: list[str] = []
    """Phases of the study, in the order in which a grant is spent (`-n --config grant_days=30`)."""
    figures: list[dict[str, Any]] = []
    """Figures that combine several experiments."""
    base: Overlay = {}
    """The recipe that every experiment varies, merged over the schema's defaults (the paper's recipe)."""
    experiments: dict[str, Experiment] = Field(min_length=1)
    """Experiments by name."""

    @field_validator("name")
    @classmethod
    def _no_formula(cls, value: str) -> str:
        if "$" in value:
            raise ValueError(f"{value!r}: {NO_FORMULA}")
        return value

    @property
    def variables(self) -> set[str]:
        """Names that the file reads as `$name` or `needs`, set by `--config NAME=...`."""
        grids = (grid for experiment in self.experiments.values() for grid in experiment.grid)
        return {
            *re.findall(r'"\$([^"]+)"', self.model_dump_json()),
            *(grid.needs for grid in grids if grid.needs),
        }

    @model_validator(mode="after")
    def _known_phases(self) -> Self:
        for name, experiment in self.experiments.items():
            if experiment.phase and experiment.phase not in self.phases:
                raise ValueError(
                    f"experiment {name}: phase {experiment.phase!r} is not one of `phases`: {', '.join(self.phases)}"
                )
        return self

    @field_validator("experiments")
    @classmethod
    def _names(cls, value: dict[str, Experiment]) -> dict[str, Experiment]:
        spelt: dict[str, str] = {}
        for name in value:
            if name in RULES:
                raise ValueError(f"{name!r} is the name of a rule of the pipeline; choose another")
            if len(name) > LONGEST_NAME:
                raise ValueError(
                    f"{name[:20]!r}...: names have at most {LONGEST_NAME} characters, not {len(name)}"
                )
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r}: names consist of letters, digits and _, such as data_size")
            if (other := spelt.setdefault(name.lower(), name)) != name:
                raise ValueError(
                    f"{other!r} and {name!r} differ in case only: their files are the same on macOS"
                )
        return value
