"""A study as the Snakefile and the commands see it: settings, names, selection, file locations, and what is checked
before anything runs, beyond the schema: figures against what runs record, sizes against pools."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trm.analysis.origin import is_current
from trm.analysis.specs import Check
from trm.analysis.words import point_name
from trm.errors import UserError
from trm.io import sha256_file
from trm.pipeline.catalogue import Catalogue
from trm.pipeline.figure_checks import check_figure
from trm.pipeline.files import Files, unreadable
from trm.pipeline.selection import Selection
from trm.pipeline.settings import Settings, check_keys, options_of, split
from trm.play import models_folder
from trm.study.fingerprint import digest
from trm.study.grid import load_study
from trm.study.horizon import too_short
from trm.study.points import ResolvedExperiment, Run, Study
from trm.study.reading import validated
from trm.study.schema import DataConfig
from trm.study.tasks import NO_SYMMETRIES, no_guesses, spec_of

TARGET = re.compile(
    r"(?:^|/)results/(sources|datasets|runs|tables|fits|plots)/"
    r"(?:([^/]+/evaluation-[^/]+)|([^/]+)/|([^/.]+)\.)"
)
"""A file by which Snakemake is asked for what a study makes, and its name there."""


REPORT = "results/report.html"


@dataclass(frozen=True)
class Project:
    """One study at one scale."""

    settings: Settings
    study: Study
    catalogue: Catalogue
    files: Files
    selection: Selection
    options: str
    """Options by which a `trm` command sees the same project."""

    @property
    def runs(self) -> dict[str, Run]:
        return self.study.runs

    def names_in_words(self) -> dict[str, tuple[str, str, str]]:
        """Of each run: the first selected experiment that has it, its point with the seed, its supervision steps."""
        found: dict[str, tuple[str, str, str]] = {}
        for name in dict.fromkeys([*self.selection.experiments, *self.study.experiments]):
            for point in self.study.experiment(name).points:
                label = " ".join(point_name(point.label).replace("=", " ").split())
                for run in point.runs:
                    words = ", ".join(filter(None, (label, f"seed {run.config.seed}")))
                    found.setdefault(run.name, (name, words, str(run.config.model.halt_max_steps)))
        return found

    def check_figures(self) -> None:
        """Check every figure, which only a main process needs. UserError: names the figure and its fault."""
        for figure in self.selection.figures.values():
            points = [point for name in figure.experiments for point in self.study.experiment(name).points]
            check_figure(figure, points, self.settings.study)
        for name in self.selection.experiments:
            check_expectations(self.study.experiment(name), self.settings.study)

    def check_sizes(self) -> None:
        """`check_sizes` of the selected experiments."""
        for name in self.selection.experiments:
            check_sizes(self.study.experiment(name), self.settings.study)

    def check_targets(self, targets: Iterable[str]) -> None:
        """Refuse experiments and files that the study does not have. UserError: one sentence, with the nearest name."""
        catalogue, selection = self.catalogue, self.selection
        kinds: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
            "sources": ("pool of puzzles", lambda: catalogue.sources),
            "datasets": ("data set", lambda: catalogue.datasets),
            "runs": ("run or evaluation", lambda: (*self.runs, *self.study.evaluations)),
            "tables": ("table", lambda: catalogue.tables),
            "fits": ("fit", lambda: selection.fits),
            "plots": ("figure", lambda: selection.figures),
        }
        for target in targets:
            if found := TARGET.search(target):
                what, names = kinds[found[1]]
                catalogue.find(dict.fromkeys(names()), str(found[found.lastindex or 1]), what)
            elif "/" not in target and not Path(target).exists():
                self.study.experiment(target)

    @property
    def report_identity(self) -> str:
        """Digest of all that the report shows."""
        words = {"question", "hypothesis", "expects"}
        shown: list[Any] = [
            self.study.file.name,
            self.study.scale_name,
            self.study.file.about,
            [figure.identity for figure in self.selection.shown],
            [self.catalogue.table_identity(name) for name in self.selection.experiments],
            {name: item.skip for name, item in self.study.experiments.items() if item.skip},
            [
                [name, item.definition.model_dump(mode="json", include=words)]
                for name, item in self.study.experiments.items()
            ],
            [sha256_file(path) for path in sorted(models_folder().glob("*/weights.safetensors"))],
        ]
        return digest(shown)

    @property
    def fixed(self) -> dict[str, str]:
        """Every file of a fixed name -> the identity that its JSON file must hold."""
        figures = {figure.files[0]: figure.identity for figure in self.selection.figures.values()}
        return {REPORT: self.report_identity, **figures}

    @cached_property
    def outdated(self) -> set[str]:
        """Files of fixed names that are missing or made from something else, as of the first look."""
        return {path for path, identity in self.fixed.items() if not is_current(Path(path), identity)}

    @cached_property
    def done(self) -> set[str]:
        """Runs whose files exist, as of the first look."""
        return {run for run in self.runs if all(map(self.files.exists, self.catalogue.run_files(run)))}


def open_project(config: dict[str, Any], storage: Any = None, dryrun: bool = False) -> Project:
    """Read and check everything that can be checked before a job runs.

    Args:
        config: Snakemake's config, see `Settings`.
        storage: Snakemake's `storage` object, for rules that name files in a bucket.
        dryrun: whether nothing will run, so that neither a bucket nor an account is needed.

    Raises:
        UserError: one sentence: what is wrong, where, and what to do.
    """
    settings, rest = split(config)
    study = load_study(settings.study, settings.scale, settings.set, config)
    check_keys(rest, study.file.variables)
    catalogue = Catalogue(study, settings.study)
    if settings.unset and not dryrun:
        raise UserError(settings.unset)
    unread = settings.unset or (
        unreadable(settings.storage_prefix) if dryrun and settings.storage_prefix else ""
    )
    files = Files(settings.storage_prefix, storage, unread)
    selection = Selection(catalogue, settings.experiments, files.exists)
    return Project(settings, study, catalogue, files, selection, options_of(config))


def check_expectations(experiment: ResolvedExperiment, where: str) -> None:
    """Refuse an `expects` that the report could not decide. UserError: names the experiment and the key."""
    for fields in experiment.definition.expects:
        validated(Check, fields, f"{where}: experiment {experiment.name}: expects")


def check_sizes(experiment: ResolvedExperiment, where: str) -> None:
    """Refuse an experiment with a data set of more puzzles than its pool can hold, a mean of more snapshots than a run
    takes, restarts or views that would all be equal, or runs too short for their settings. UserError: names the
    experiment and the numbers."""
    for point in experiment.points:
        config, measured = point.runs[0].config, point.evaluation
        sentence = too_many(config.data)
        if measured.weights == "average" and not 1 <= measured.average <= config.training.snapshots:
            sentence = (
                f"evaluation.average={measured.average} must be at least 1 and at most training.snapshots="
                f"{config.training.snapshots}"
            )
        symmetric = (
            measured.restarts and not (measured.start_noise or measured.step_noise)
        ) or measured.view_steps
        if symmetric and not spec_of(config.data.task).symmetric:
            sentence = NO_SYMMETRIES.format(config.data.task)
        sentence = sentence or no_guesses(config, measured) or too_short(config)
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
        remedy = "raise it, or lower the numbers" if name == "data.pool" else "lower the numbers"
        return f"{name} has {most:,} puzzles, not {train + held_out + test:,} ({wanted}): {remedy}"
    return ""
