"""The study as files: which file depends on which content. Used by the Snakefile; imports neither numpy nor torch.

Every file between the data and the figures is named by a digest of what it depends on, so existence alone says that it
is current. Only what people open has fixed names (`results/plots/*.pdf`, `results/report.html`); a small JSON beside
each of them says what it was drawn from, and a mismatch makes it stale whatever the times of the files are.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trm.analysis.specs import FIGURE, FitSpec
from trm.errors import UserError
from trm.pipeline.naming import (
    ANALYSIS_VERSION,
    DATASET_FILES,
    REPORT,
    RUN_FILES,
    Figure,
    Fit,
    dataset_name,
    parse_overrides,
    points_identity,
    published,
    source_name,
    style_digest,
)
from trm.study.dataset_identity import dataset_identity, source_identity
from trm.study.fingerprint import canonical_json, digest, run_identity
from trm.study.grid import ResolvedExperiment, Run, Study, load_study
from trm.study.merge import nearest
from trm.study.reading import error_sentence


class Workflow:
    """All names of the study at one scale.

    Args:
        config: Snakemake's config: `scale`, `study` (path of experiments.yaml), `experiments` (`report`, `study` or a
            comma-separated list of names and patterns), `set` (dotted overrides), and the variables `sudoku_csv`,
            `arc_files`.
    """

    def __init__(self, config: dict[str, Any]):
        self.path = str(config.get("study", "config/experiments.yaml"))
        self.scale = str(config.get("scale", "laptop"))
        self.study: Study = load_study(self.path, self.scale, parse_overrides(config.get("set")), config)
        self.config = config
        self.runs: dict[str, Run] = self.study.runs
        self.style = style_digest("config/figures.mplstyle")
        self.logs = str(config.get("logs") or "logs").rstrip("/")

    # names ------------------------------------------------------------------------------------------------

    @cached_property
    def sources(self) -> dict[str, Run]:
        """Pool of puzzles -> a run that uses it."""
        return {self.source_of(run): run for run in self.runs.values()}

    @cached_property
    def datasets(self) -> dict[str, Run]:
        """Data set -> a run that uses it."""
        return {self.dataset_of(run): run for run in self.runs.values()}

    def source_of(self, run: Run) -> str:
        """Folder name of the pool of puzzles that a run's data set is cut from."""
        return source_name(run.config.data)

    def dataset_of(self, run: Run) -> str:
        """Folder name of a run's data set."""
        return dataset_name(run.config.data)

    def evaluations(self, experiment: str) -> list[str]:
        """`<run>/<file>` of every evaluation of an experiment, each once."""
        points = self.study.experiment(experiment).points
        return list(
            dict.fromkeys(f"{run.name}/{point.evaluation_file}" for point in points for run in point.runs)
        )

    def table_identity(self, experiment: str) -> str:
        """Digest of what an experiment's table depends on: its points, their runs and evaluations."""
        resolved = self.study.experiment(experiment)
        content = [self.study.name, self.scale, ANALYSIS_VERSION, points_identity(resolved.points)]
        return digest(content)

    def table(self, experiment: str) -> str:
        """File stem of an experiment's table."""
        return f"{experiment}-{self.table_identity(experiment)[:8]}"

    # figures ----------------------------------------------------------------------------------------------

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every figure of the scale by its stem."""
        found = {figure.stem: figure for name in self.study.experiments for figure in self.figures_of(name)}
        where = f"{self.path}: figures"
        for raw in self.study.figures:
            figure = self._figure(self._restrict(dict(raw)), "", where, set(found))
            if figure:
                found[figure.stem] = figure
        return found

    def figures_of(self, experiment: str) -> list[Figure]:
        """The figures of one experiment; the first one carries the experiment's own name."""
        resolved = self.study.experiment(experiment)
        if resolved.skip:
            return []
        where = f"{self.path}: experiment {experiment}: figures"
        figures: list[Figure] = []
        for raw in resolved.figures:
            figure = self._figure(raw, resolved.name, where, {figure.stem for figure in figures})
            if figure:
                figures.append(figure)
        return figures

    def _restrict(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """A study-wide figure without the experiments that are no part of this report; nothing if none is left."""
        if "panels" in raw:
            raw["panels"] = [panel for panel in raw["panels"] if panel.get("experiment") in self.selected]
            return raw if raw["panels"] else None
        if "sources" in raw:
            raw["sources"] = [name for name in raw["sources"] if name in self.selected]
            return raw if raw["sources"] else None
        return raw

    def _figure(
        self, raw: dict[str, Any] | None, experiment: str, where: str, taken: set[str]
    ) -> Figure | None:
        if raw is None:
            return None
        try:
            spec = FIGURE.validate_python(raw)
        except ValidationError as error:
            raise UserError(f"{where}: {error_sentence(error, None)}") from error
        stem = spec.name or experiment
        if stem in taken or not stem:
            stem = f"{experiment}_{spec.slug}".replace("-", "_").strip("_")
        if stem in taken:
            raise UserError(f"{where}: two figures are named {stem}; give one a `name`")
        experiments = spec.experiments(experiment)
        for name in experiments:
            if self.study.experiment(name).skip:
                return None
        fits = tuple(self._fit(fit, experiments) for fit in spec.fits(experiment))
        tables = [self.table_identity(name) for name in experiments]
        content = [
            ANALYSIS_VERSION,
            spec.model_dump(mode="json"),
            tables,
            [fit.name for fit in fits],
            self.style,
        ]
        return Figure(stem, spec, experiments, fits, digest(content))

    def _fit(self, spec: FitSpec, experiments: tuple[str, ...]) -> Fit:
        experiments = spec.experiments or experiments
        tables = [self.table_identity(name) for name in experiments]
        identity = digest([ANALYSIS_VERSION, spec.model_dump(mode="json"), tables])
        return Fit(f"{'_'.join(experiments)}-{identity[:8]}", spec, experiments)

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """Every fit of the scale by its file stem."""
        return {fit.name: fit for figure in self.figures.values() for fit in figure.fits}

    @cached_property
    def figures_by_name(self) -> dict[str, Figure]:
        """Every figure by its name by content."""
        return {figure.name: figure for figure in self.figures.values()}

    @cached_property
    def tables(self) -> dict[str, str]:
        """Table stem -> experiment."""
        return {self.table(name): name for name, e in self.study.experiments.items() if not e.skip}

    # selection --------------------------------------------------------------------------------------------

    @cached_property
    def selected(self) -> list[str]:
        """Experiments asked for, and those whose results are all there already."""
        wanted = self._wanted()
        done = [
            name
            for name, experiment in self.study.experiments.items()
            if name not in wanted and not experiment.skip and self._is_done(name)
        ]
        return [name for name in self.study.experiments if name in wanted or name in done]

    def _wanted(self) -> set[str]:
        text = str(self.config.get("experiments", "report"))
        if text in ("report", "study"):
            return set(self.study.selected(text))
        names: set[str] = set()
        for pattern in text.replace(",", " ").split():
            hits = [
                name
                for name in [*self.study.experiments, *self.study.aliases]
                if fnmatch.fnmatch(name, pattern)
            ]
            for name in hits or [pattern]:
                names.add(self.study.experiment(name).name)
        return {name for name in names if not self.study.experiment(name).skip}

    def _is_done(self, experiment: str) -> bool:
        return all(Path("results/runs", name).exists() for name in self.evaluations(experiment))

    # what people open -------------------------------------------------------------------------------------

    def is_stale(self, published: str, identity: str) -> bool:
        """Whether the file of a fixed name was made from something else than `identity`."""
        try:
            stamp = json.loads(Path(published).with_suffix(".json").read_text(encoding="utf-8"))
            return stamp["identity"] != identity
        except FileNotFoundError:
            return Path(published).exists()
        except (OSError, ValueError, KeyError, TypeError):
            return True

    def age_stale_files(self) -> None:
        """Give files of fixed names that were made from something else a time long ago. Together with an input that
        exists (`reason_to_publish`) this makes Snakemake make them again although their times, and perhaps its lost
        records, say nothing. Their content is not touched."""
        stamped = {published(figure.stem): figure.identity for figure in self.figures.values()}
        for path, identity in {**stamped, REPORT: self.report_identity}.items():
            if self.is_stale(path, identity):
                with suppress(
                    OSError
                ):  # a folder that cannot be written is named by the job that must write there
                    os.utime(path, (1, 1))

    def reason_to_publish(self, stem: str) -> list[str]:
        """A file newer than a published figure that was drawn from something else than is asked for now."""
        return [self.path] if self.is_stale(published(stem), self.figure(stem).identity) else []

    def reason_to_report(self) -> list[str]:
        """The same for the report."""
        return [self.path] if self.is_stale(REPORT, self.report_identity) else []

    @cached_property
    def report_identity(self) -> str:
        """Digest of all that the report shows."""
        figures = [figure.identity for figure in self.figures.values() if self.is_shown(figure)]
        tables = [self.table_identity(name) for name in self.selected]
        skipped = {name: e.skip for name, e in self.study.experiments.items() if e.skip}
        questions = [
            [e.definition.question, e.definition.hypothesis] for e in self.study.experiments.values()
        ]
        shown = [
            self.study.name,
            self.scale,
            figures,
            tables,
            skipped,
            questions,
            list(self.study.experiments),
        ]
        if budget := self.config.get("budget_hours"):
            shown.append(str(budget))
        return digest(shown)

    def is_shown(self, figure: Figure) -> bool:
        """Whether every experiment of a figure is part of this report."""
        return all(name in self.selected for name in figure.experiments)

    def shown_figures(self) -> list[Figure]:
        """The figures of the report."""
        return [figure for figure in self.figures.values() if self.is_shown(figure)]

    # inputs and outputs of rules --------------------------------------------------------------------------

    def source_outputs(self, source: str) -> list[str]:
        """Files of a pool of puzzles."""
        return [f"results/sources/{source}/{file}" for file in ("manifest.json", "puzzles.npz")]

    def source_of_dataset(self, dataset: str) -> str:
        """Pool that a data set is cut from."""
        return self.source_of(self._known(self.datasets, dataset, "data set"))

    def dataset_outputs(self, dataset: str) -> list[str]:
        """Files of a data set; the manifest, written last, is the first."""
        return [
            f"results/datasets/{dataset}/{file}"
            for file in ("manifest.json", "identifiers.json", *DATASET_FILES)
        ]

    def dataset_manifest(self, run: str) -> str:
        """Manifest of a run's data set."""
        return self.dataset_outputs(self.dataset_of(self._known(self.runs, run, "run")))[0]

    def initial_weights(self, run: str) -> list[str]:
        """Weights of the run that this one starts from, if this study trains it. UserError: neither does the study,
        nor are they there."""
        start = self._known(self.runs, run, "run").config.training.init_from
        path = f"results/runs/{start}/weights.safetensors"
        if start and start not in self.runs:  # an older run: no rule of this study may ask for it
            if not self.config.get("storage_prefix") and not Path(path).exists():
                raise UserError(f"training.init_from={start}: {path} does not exist; name a finished run")
            return []
        return [path] if start else []

    @cached_property
    def any_initial_weights(self) -> bool:
        """Whether any run starts from another run's weights."""
        return any(run.config.training.init_from for run in self.runs.values())

    def run_outputs(self, run: str) -> list[str]:
        """Files of a finished run."""
        return [f"results/runs/{run}/{file}" for file in RUN_FILES]

    def table_inputs(self, table: str) -> list[str]:
        """Evaluations, and the runs' own files, that a table gathers."""
        names = self.evaluations(self._known(self.tables, table, "table"))
        runs = dict.fromkeys(name.split("/")[0] for name in names)
        return [f"results/runs/{name}" for name in names] + [
            file for run in runs for file in self.run_outputs(run)[:2]
        ]

    def fit_inputs(self, fit: str) -> list[str]:
        """Tables that a fit reads."""
        return [self.table_file(name) for name in self._known(self.fits, fit, "fit").experiments]

    def table_file(self, experiment: str) -> str:
        """Path of an experiment's table."""
        return f"results/tables/{self.table(experiment)}.csv"

    def figure(self, stem: str) -> Figure:
        """A figure by its stem."""
        return self._known(self.figures, stem, "figure")

    def figure_tables(self, figure: str) -> list[str]:
        """Tables that a figure reads."""
        return [
            self.table_file(name) for name in self._known(self.figures_by_name, figure, "figure").experiments
        ]

    def figure_fits(self, figure: str) -> list[str]:
        """Fits that a figure reads."""
        return [
            f"results/fits/{fit.name}.json"
            for fit in self._known(self.figures_by_name, figure, "figure").fits
        ]

    def category(self, stem: str) -> str:
        """Section of `snakemake --report` that a figure stands in."""
        figure = self.figures.get(stem)
        return figure.experiments[0] if figure and len(figure.experiments) == 1 else "Laws"

    def report_tables(self) -> list[str]:
        """Tables that the report shows."""
        return [self.table_file(name) for name in self.selected]

    def report_fits(self) -> list[str]:
        """Fits that the report quotes."""
        names = dict.fromkeys(fit.name for figure in self.shown_figures() for fit in figure.fits)
        return [f"results/fits/{name}.json" for name in names]

    def report_figures(self) -> list[str]:
        """Figures that the report shows."""
        return [
            f"results/figures/{f.name}{end}"
            for f in self.shown_figures()
            for end in (".pdf", ".png", ".json")
        ]

    def targets(self) -> dict[str, list[str]]:
        """Name or older id of an experiment -> its published figures."""
        targets = {}
        for name, experiment in self.study.experiments.items():
            if not experiment.skip:
                for target in (name, *experiment.definition.aliases):
                    targets[target] = [published(figure.stem) for figure in self.figures_of(name)]
        return targets

    def _known(self, names: dict[str, Any], name: str, what: str) -> Any:
        if name not in names:
            raise UserError(
                f"{self.path} at scale {self.scale} asks for no {what} {name!r}{nearest(name, names)}"
            )
        return names[name]

    @cached_property
    def options(self) -> str:
        """Options by which a `trm study` command sees the same study, quoted for a shell."""
        words = ["--study", self.path, "--scale", self.scale]
        for key, value in self.config.items():
            if value and key not in ("study", "scale", "storage_prefix"):
                text = (
                    " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
                )
                words += ["--config", f"{key}={text}"]
        return shlex.join(words)

    # JSON handed to commands ------------------------------------------------------------------------------

    def source_json(self, source: str) -> str:
        """The part of a DataConfig that makes a pool of puzzles, without paths (checksums stand for them)."""
        return canonical_json(source_identity(self.sources[source].config.data))

    def source_files(self, source: str) -> str:
        """Comma-separated input files of a pool."""
        return ",".join(self.sources[source].config.data.files)

    def dataset_json(self, dataset: str) -> str:
        """A DataConfig as far as the data set depends on it."""
        return canonical_json(dataset_identity(self.datasets[dataset].config.data))

    def run_json(self, run: str) -> str:
        """A RunConfig as far as the run depends on it."""
        identity = run_identity(self._known(self.runs, run, "run").config)
        return canonical_json({key: value for key, value in identity.items() if key != "recipe_version"})

    def evaluation_json(self, run: str, evaluation: str) -> str:
        """An EvaluationConfig by its digest."""
        name = f"{run}/evaluation-{evaluation}.json"
        known = self._known(self.study.evaluations, name, "evaluation")
        return canonical_json(known.model_dump(exclude_defaults=True))

    def fit_json(self, fit: str) -> str:
        """A FitSpec."""
        return canonical_json(self._known(self.fits, fit, "fit").spec.model_dump(mode="json"))

    def figure_json(self, figure: str) -> str:
        """A figure's specification, with the style it is drawn in as part of its identity."""
        known = self._known(self.figures_by_name, figure, "figure")
        return canonical_json(known.spec.model_dump(mode="json"))

    def table_json(self, name: str, root: str = "") -> dict[str, Any]:
        """A TableSpec (trm.analysis.specs); `root` is put before the runs' folders."""
        resolved: ResolvedExperiment = self.study.experiment(name)
        return {
            "name": resolved.name,
            "scale": self.scale,
            "study": self.study.name,
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
                for point in resolved.points
            ],
        }
