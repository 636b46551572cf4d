"""Names and files of everything that a study makes at one scale. Imports neither numpy nor torch.

Every file between the data and the fits is named by a digest of what it depends on: what exists is current. Figures and
report have fixed names; the JSON file of each holds that digest (`trm.analysis.origin.is_current`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from trm.analysis.kinds import FIGURE, KINDS
from trm.analysis.specs import Figure as FigureSpec
from trm.analysis.specs import FitSpec
from trm.errors import UserError
from trm.study.dataset_identity import dataset_identity, source_identity
from trm.study.fingerprint import canonical_json, digest, run_identity, task_slug
from trm.study.merge import nearest
from trm.study.points import Run, Study
from trm.study.reading import error_sentence
from trm.study.records import NAMED
from trm.study.schema import DataConfig, RunConfig

Value = TypeVar("Value")
ANALYSIS_VERSION = 26
"""Raised when tables, fits or figures are computed differently: all of them are then rebuilt; no run is."""
ARRAYS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices", "ratings")
DATASET_FILES = tuple(
    f"{split}/{file}"
    for split in ("train", "validation", "test")
    for file in ("dataset.json", *(f"all__{array}.npy" for array in ARRAYS))
)
RUN_FILES = ("training.json", "history.csv", "weights.safetensors")


@dataclass(frozen=True)
class Fit:
    """One fit: its name by content, its specification and the tables it reads."""

    name: str
    spec: FitSpec
    tables: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"results/fits/{self.name}.json"

    @property
    def json(self) -> str:
        return canonical_json(self.spec.model_dump(mode="json"))


@dataclass(frozen=True)
class Figure:
    """One figure: its file stem, its specification, the experiments whose tables and the fits that it reads."""

    stem: str
    spec: FigureSpec
    experiments: tuple[str, ...]
    tables: tuple[str, ...]
    fits: tuple[Fit, ...]
    identity: str

    @property
    def files(self) -> list[str]:
        """PDF, PNG, and the JSON file with words and identity."""
        return [f"results/plots/{self.stem}{end}" for end in (".pdf", ".png", ".json")]

    @property
    def json(self) -> str:
        return canonical_json(self.spec.model_dump(mode="json"))


@cache
def source_name(data: DataConfig) -> str:
    """Folder of the pool of puzzles that a data set is cut from."""
    return f"{task_slug(data)}-{data.source}-{digest(source_identity(data))[:8]}"


@cache
def dataset_name(data: DataConfig) -> str:
    """Folder of a data set."""
    size = f"p{data.train_puzzles or 'all'}a{data.augmentations}"
    return f"{task_slug(data)}-{size}-{digest(dataset_identity(data))[:8]}"


def style_digest(path: str) -> str:
    """Digest of a style file without comments and blank lines."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ""
    return digest([text for line in lines if (text := line.split("#", 1)[0].strip())])


class Catalogue:
    """Everything that the study can make, selected or not. `path`: the study's file, for error messages."""

    def __init__(self, study: Study, path: str):
        self.study, self.path = study, path
        self.runs: dict[str, Run] = study.runs
        self._style = style_digest("config/figures.mplstyle")

    def find(self, names: dict[str, Value], name: str, what: str) -> Value:
        """`names[name]`. UserError: the study has none of that name."""
        if name not in names:
            raise UserError(f"{self.path} has no {what} {name!r}{nearest(name, names)}")
        return names[name]

    def run(self, name: str) -> Run:
        return self.find(self.runs, name, "run")

    # data

    @cached_property
    def sources(self) -> dict[str, Run]:
        """Pool of puzzles -> a run that uses it."""
        return {source_name(run.config.data): run for run in self.runs.values()}

    @cached_property
    def datasets(self) -> dict[str, Run]:
        """Data set -> a run that uses it."""
        return {dataset_name(run.config.data): run for run in self.runs.values()}

    def source_files(self, source: str) -> list[str]:
        """Files of a pool of puzzles; the manifest, written last, is the first."""
        return [f"results/sources/{source}/{file}" for file in ("manifest.json", "puzzles.npz")]

    def source_inputs(self, source: str) -> str:
        """Comma-separated files that a pool is read from."""
        return ",".join(self.find(self.sources, source, "pool of puzzles").config.data.files)

    def source_json(self, source: str) -> str:
        """The part of a DataConfig that determines a pool; checksums replace file paths."""
        return canonical_json(source_identity(self.find(self.sources, source, "pool of puzzles").config.data))

    def dataset_files(self, dataset: str) -> list[str]:
        """Files of a data set; the manifest, written last, is the first."""
        names = ("manifest.json", "identifiers.json", *DATASET_FILES)
        return [f"results/datasets/{dataset}/{name}" for name in names]

    def dataset_json(self, dataset: str) -> str:
        """The part of a DataConfig that determines the data set."""
        return canonical_json(dataset_identity(self.find(self.datasets, dataset, "data set").config.data))

    def dataset_manifest(self, run: str) -> str:
        return self.dataset_files(dataset_name(self.run(run).config.data))[0]

    # runs and evaluations

    def run_files(self, run: str) -> list[str]:
        return [f"results/runs/{run}/{file}" for file in RUN_FILES]

    def run_json(self, run: str) -> str:
        """The part of a RunConfig that determines the run."""
        identity = run_identity(self.run(run).config)
        return canonical_json({key: identity[key] for key in RunConfig.model_fields if key in identity})

    @cached_property
    def any_initial_weights(self) -> bool:
        """Whether any run starts from another run's weights."""
        return any(run.config.training.init_from for run in self.runs.values())

    def evaluations(self, experiment: str) -> list[str]:
        """`<run>/<file>` of every evaluation of an experiment, each once."""
        points = self.study.experiment(experiment).points
        return list(dict.fromkeys(name for point in points for name in point.evaluations))

    def evaluation_json(self, run: str, evaluation: str) -> str:
        name = f"{run}/evaluation-{evaluation}.json"
        return canonical_json(
            self.find(self.study.evaluations, name, "evaluation").model_dump(exclude_defaults=True)
        )

    # tables

    @cached_property
    def tables(self) -> dict[str, str]:
        """Table -> experiment."""
        return {self.table(name): name for name, item in self.study.experiments.items() if not item.skip}

    def table_identity(self, experiment: str) -> str:
        """Digest of an experiment's points, their runs and evaluations."""
        points = [
            [point.coords, point.label, [run.name for run in point.runs], point.evaluation_file]
            for point in self.study.experiment(experiment).points
        ]
        steps = self.study.experiment(experiment).definition.test_steps
        ruler = [] if steps is None else [steps]
        return digest([self.study.file.name, self.study.scale_name, ANALYSIS_VERSION, points, *ruler])

    def table(self, experiment: str) -> str:
        """File stem of an experiment's table."""
        return f"{experiment}-{self.table_identity(experiment)[:8]}"

    def table_file(self, experiment: str) -> str:
        return f"results/tables/{self.table(experiment)}.csv"

    def table_inputs(self, table: str) -> list[str]:
        """Evaluations and run files that a table collects."""
        names = self.evaluations(self.find(self.tables, table, "table"))
        runs = dict.fromkeys(name.split("/")[0] for name in names)
        return [f"results/runs/{name}" for name in names] + [
            file for run in runs for file in self.run_files(run)[:2]
        ]

    def table_spec(self, name: str, root: str = "") -> dict[str, Any]:
        """A TableSpec (trm.analysis.specs) of a table or an experiment; `root` is put before run folders."""
        if NAMED.fullmatch(name) and name not in self.tables:
            raise UserError(
                f"{self.path} was edited during this run and no longer makes the table {name}: repeat the command; "
                "finished runs are kept, and only what the edit changes is made"
            )
        experiment = self.study.experiment(self.tables.get(name, name))
        return {
            "name": experiment.name,
            "scale": self.study.scale_name,
            "test_steps": experiment.definition.test_steps,
            "study": self.study.file.name,
            "recipe": {key: value for key, value in self.study.recipe.items() if not isinstance(value, list)},
            "points": [
                {
                    "coords": point.coords,
                    "label": point.label,
                    "runs": [
                        {
                            "run": run.name,
                            "seed": run.config.seed,
                            "directory": f"{root}results/runs/{run.name}",
                            "evaluations": [point.evaluation_file],
                        }
                        for run in point.runs
                    ],
                }
                for point in experiment.points
            ],
        }

    # fits and figures

    def figures_of(self, experiment: str) -> list[Figure]:
        """The figures of one experiment; the first one carries the experiment's own name."""
        resolved = self.study.experiment(experiment)
        figures: list[Figure] = []
        for raw in () if resolved.skip else resolved.definition.figures:
            where = f"{self.path}: experiment {experiment}: figures"
            figure = self.figure(raw, resolved.name, where, {item.stem for item in figures})
            if figure:
                figures.append(figure)
        return figures

    def figure(self, raw: dict[str, Any], experiment: str, where: str, taken: Iterable[str]) -> Figure | None:
        """A figure from its specification, or None if one of its experiments is not run at this scale.

        Args:
            raw: the specification as the study gives it.
            experiment: whose figure it is; empty for a figure over several experiments.
            where: its place in the study, for error messages.
            taken: stems of figures that exist already.

        Raises:
            UserError: an invalid specification or two figures of one name.
        """
        kind = KINDS.get(raw.get("kind", ""))
        model = kind.Spec if kind else None  # the figure's own model knows the keys near a misspelt one
        try:
            spec = model.model_validate(raw) if model else FIGURE.validate_python(raw)
        except ValidationError as error:
            which = f" ({raw.get('name') or raw['kind']})" if "kind" in raw else ""
            raise UserError(f"{where}{which}: {error_sentence(error, model)}") from error
        stem = spec.name or experiment
        taken = {name.lower() for name in taken}  # macOS does not tell Baseline.pdf from baseline.pdf
        if stem.lower() in taken or not stem:
            stem = f"{experiment}_{spec.slug}".replace("-", "_").strip("_")
        if stem.lower() in taken:
            raise UserError(f"{where}: two figures are named {stem}; give one a `name`")
        experiments = spec.experiments(experiment)
        if any(self.study.experiment(name).skip for name in experiments):
            return None
        fits = tuple(self._fit(fit, experiments) for fit in spec.fits(experiment))
        identities = [self.table_identity(name) for name in experiments]
        content = spec.model_dump(mode="json")
        identity = digest([ANALYSIS_VERSION, content, identities, [fit.name for fit in fits], self._style])
        return Figure(stem, spec, experiments, tuple(map(self.table_file, experiments)), fits, identity)

    def _fit(self, spec: FitSpec, experiments: tuple[str, ...]) -> Fit:
        experiments = spec.experiments or experiments
        identities = [self.table_identity(name) for name in experiments]
        identity = digest([ANALYSIS_VERSION, spec.model_dump(mode="json"), identities])
        return Fit(f"{'_'.join(experiments)}-{identity[:8]}", spec, tuple(map(self.table_file, experiments)))
