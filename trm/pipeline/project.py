"""A study as the Snakefile and the commands see it: settings, names, selection, file locations."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trm.io import sha256_file
from trm.pipeline.catalogue import Catalogue
from trm.pipeline.checks import check_expectations, check_figure, check_sizes
from trm.pipeline.places import Place
from trm.pipeline.selection import Selection
from trm.pipeline.settings import Settings, check_keys, options_of, split
from trm.play import models_folder
from trm.study.fingerprint import digest
from trm.study.grid import load_study
from trm.study.points import Run, Study


@dataclass(frozen=True)
class Project:
    """One study at one scale."""

    settings: Settings
    study: Study
    catalogue: Catalogue
    place: Place
    selection: Selection
    options: str
    """Options by which a `trm` command sees the same project."""

    @property
    def runs(self) -> dict[str, Run]:
        """Every run of the study by its name."""
        return self.study.runs

    def check_figures(self) -> None:
        """Check every figure, which only a main process needs. UserError: names the figure and its fault."""
        for figure in self.selection.figures.values():
            check_figure(figure, self.settings.study)
        for name in self.selection.experiments:
            check_expectations(self.study.experiment(name), self.settings.study)

    def check_sizes(self) -> None:
        """Check the data sets of the selected experiments. UserError: names the experiment and what its pool cannot
        give."""
        for name in self.selection.experiments:
            check_sizes(self.study.experiment(name), self.settings.study)

    @property
    def report_identity(self) -> str:
        """Digest of all that the report shows."""
        words = {"question", "hypothesis", "hypothesis_needs", "expects"}
        shown: list[Any] = [
            self.study.name,
            self.study.scale_name,
            self.study.scale.about,
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

    @cached_property
    def done(self) -> set[str]:
        """Runs whose files exist, as of the first look."""
        return {run for run in self.runs if all(map(self.place.exists, self.catalogue.run_files(run)))}


def open_project(config: dict[str, Any], storage: Any = None) -> Project:
    """Read and check everything that can be checked before a job runs.

    Args:
        config: Snakemake's config, see `Settings`.
        storage: Snakemake's `storage` object, for rules that name files in a bucket.

    Raises:
        UserError: one sentence: what is wrong, where, and what to do.
    """
    settings, rest = split(config)
    study = load_study(settings.study, settings.scale, settings.set, config)
    check_keys(rest, study.variables)
    catalogue = Catalogue(study, settings.study)
    place = Place(settings.storage_prefix, storage)
    selection = Selection(catalogue, settings.experiments, place.exists)
    return Project(settings, study, catalogue, place, selection, options_of(config))
