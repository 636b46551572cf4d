"""Functions that Snakemake calls for the inputs and parameters of each job: `by` and `derived` make one of any function
of a name, `Inputs` has the others.

A parameter whose function takes `output` is derived in Snakemake's sense: a change of it is no reason to run the job
again. Everything that no result depends on (threads, log settings, checkpoint folders, paths of input files) reaches
its command this way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from snakemake.exceptions import WorkflowError
from snakemake.io import ancient

from trm.errors import UserError
from trm.pipeline.checks import check_sizes
from trm.pipeline.estimates import Estimates
from trm.pipeline.naming import published
from trm.pipeline.preflight_gate import PreflightGate
from trm.pipeline.project import Project
from trm.pipeline.selection import spec_json


def by(function: Callable[..., Any], *wildcards: str) -> Callable[[Any], Any]:
    """An input or parameter function: `function` of the values of `wildcards`."""

    def call(values: Any) -> Any:
        return function(*(getattr(values, name) for name in wildcards))

    return call


def derived(function: Callable[..., Any], *wildcards: str) -> Callable[[Any, Any], Any]:
    """The same for a parameter whose change is no reason to run the job again."""

    def call(values: Any, output: Any) -> Any:
        return function(*(getattr(values, name) for name in wildcards))

    return call


class Inputs:
    """Input and parameter functions of the rules."""

    def __init__(self, project: Project, estimates: Estimates, check: PreflightGate):
        self._study, self._catalogue, self._selection = project.study, project.catalogue, project.selection
        self._place = project.place
        self._estimates, self._check, self._point = estimates, check, project.settings.point
        self._check_sizes = project.check_sizes
        self._runtime = project.study.scale.runtime.model_dump_json(exclude_defaults=True)
        for name in vars(type(self)):
            if not name.startswith("_") and name != "target":
                setattr(self, name, _plain(getattr(self, name)))
        if not estimates.max_minutes:  # without a limit nothing needs the resources of thousands of jobs
            setattr(self, "train_options", _plain(self._train_options))  # noqa: B010

    # a pool of puzzles and its data sets

    def source_preflight(self, wildcards: Any) -> list[Any]:
        """The pod's check, for a pool that does not exist yet."""
        return self._checked(self._catalogue.source_files(wildcards.source))

    def dataset_preflight(self, wildcards: Any) -> list[Any]:
        """The pod's check, for a data set that does not exist yet."""
        return self._checked(self._catalogue.dataset_files(wildcards.dataset))

    def dataset_manifest(self, wildcards: Any) -> list[Any]:
        """Manifest of the pool that the data set is cut from."""
        return self._source_file(wildcards.dataset, 0)

    def dataset_puzzles(self, wildcards: Any) -> list[Any]:
        """Puzzles of that pool."""
        return self._source_file(wildcards.dataset, 1)

    def _source_file(self, dataset: str, index: int) -> list[Any]:
        path = self._catalogue.source_files(self._catalogue.source_of_dataset(dataset))[index]
        return _ancient(self._place.needed(path, self._catalogue.dataset_files(dataset)))

    # training

    def train_dataset(self, wildcards: Any) -> list[Any]:
        """Manifest of the run's data set. Ancient: its name says what is in it, so a data set that was restored or
        copied trains nothing again."""
        return self._dataset(wildcards.run, self._catalogue.run_files(wildcards.run))

    def train_preflight(self, wildcards: Any) -> list[Any]:
        """The pod's check, for a run that is not finished."""
        return self._checked(self._catalogue.run_files(wildcards.run))

    def train_initial(self, wildcards: Any) -> list[Any]:
        """Weights of the run that `training.init_from` names.

        Raises:
            UserError: the study does not train that run, and its weights do not exist.
        """
        start = self._catalogue.run(wildcards.run).config.training.init_from
        path = f"results/runs/{start}/weights.safetensors"
        if not start:
            return []
        if start not in self._catalogue.runs:  # of another study: no rule of this one can make it
            if not self._place.exists(path):
                raise UserError(f"training.init_from={start}: {path} does not exist; name a finished run")
            return []
        return _ancient(self._place.needed(path, self._catalogue.run_files(wildcards.run)))

    def train_options(self, wildcards: Any, output: Any, resources: Any) -> list[str]:
        """Options of `trm train` that its result does not depend on. Where the profile limits the time of a job
        (`max_runtime`), the run stops before that, and another job resumes it."""
        return [*self._train_options(wildcards, output), "--time-limit", str(resources.runtime)]

    def _train_options(self, wildcards: Any, output: Any) -> list[str]:
        run, estimates = wildcards.run, self._estimates
        words = ["--threads", str(self._study.scale.threads), "--runtime", self._runtime]
        words += ["--checkpoints", self.checkpoints(wildcards, output)]
        if (workers := estimates.workers(run)) > 1:
            words += ["--workers", str(workers)]
        return [*words, *estimates.log_every(run), *estimates.evaluations(run)]

    # evaluation

    def evaluate_dataset(self, wildcards: Any) -> list[Any]:
        """Manifest of the run's data set, unless the evaluation exists."""
        name = f"results/runs/{wildcards.run}/evaluation-{wildcards.evaluation}.json"
        return self._dataset(wildcards.run, [name])

    def checkpoints(self, wildcards: Any, output: Any) -> str:
        """Folder or gs:// prefix of the run's checkpoints."""
        return f"{self._place.checkpoints}/{wildcards.run}"

    # tables, fits, figures, the report

    def table_inputs(self, wildcards: Any) -> list[Any]:
        """Evaluations and run files that the table gathers."""
        return self._place.all(self._catalogue.table_inputs(wildcards.table))

    def fit_tables(self, wildcards: Any) -> list[str]:
        """Tables that the fit reads."""
        return self._catalogue.figure_tables(self._selection.fit(wildcards.fit))

    def fit_json(self, wildcards: Any) -> str:
        """A FitSpec."""
        return spec_json(self._selection.fit(wildcards.fit))

    def figure_tables(self, wildcards: Any) -> list[str]:
        """Tables that the figure reads."""
        return self._catalogue.figure_tables(self._selection.figure_by_name(wildcards.figure))

    def figure_fits(self, wildcards: Any) -> list[str]:
        """Fits that the figure reads."""
        figure = self._selection.figure_by_name(wildcards.figure)
        return [f"results/fits/{fit.name}.json" for fit in figure.fits]

    def figure_json(self, wildcards: Any) -> str:
        """A figure's specification."""
        return spec_json(self._selection.figure_by_name(wildcards.figure))

    def published_files(self, wildcards: Any) -> list[str]:
        """PDF, PNG and caption of the figure that is published under a fixed name."""
        name = self._selection.figure(wildcards.stem).name
        return [f"results/figures/{name}{end}" for end in (".pdf", ".png", ".json")]

    def published_identity(self, wildcards: Any) -> str:
        """Digest of all that the figure shows."""
        return self._selection.figure(wildcards.stem).identity

    def published_kind(self, wildcards: Any) -> str:
        """Kind of the figure, for its caption in `snakemake --report`."""
        return self._selection.figure(wildcards.stem).spec.kind

    def report_inputs(self, wildcards: Any) -> list[str]:
        """Tables, fits and figures of the report."""
        return [*self._selection.report_tables, *self._selection.report_fits, *self._selection.report_figures]

    def everything(self, wildcards: Any) -> list[str]:
        """The report and every figure that it shows."""
        try:
            self._check_sizes()
        except UserError as error:
            raise WorkflowError(str(error)) from None
        stems = [figure.stem for figure in self._selection.shown]
        pictures = [published(stem).removesuffix(".pdf") + end for stem in stems for end in (".pdf", ".png")]
        return ["results/report.html", *pictures]

    def target(self, name: str) -> Any:
        """A function for the published figures of an experiment, or for the evaluations of the one grid point that
        the name or `--point` means. It says so if the experiment cannot run here."""

        def files(wildcards: Any) -> list[Any]:
            try:
                experiment, point = self._study.find(name)
                if experiment.skip:
                    raise UserError(self._study.why_skipped(experiment.name))
                check_sizes(experiment, self._catalogue.path)
                if self._point:
                    point = experiment.point(self._point)
            except UserError as error:
                raise WorkflowError(str(error)) from None
            if point is None:
                return self._selection.targets[name]
            return self._place.all(f"results/runs/{name}" for name in point.evaluations)

        return files

    # shared

    def _checked(self, outputs: list[str]) -> list[Any]:
        return _ancient(self._check.before(*outputs))

    def _dataset(self, run: str, outputs: list[str]) -> list[Any]:
        manifest = self._catalogue.dataset_manifest(run)
        return _ancient(self._place.needed(manifest, outputs, retrieve=False))


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function in place of a method, with its signature at hand. Snakemake looks at the signature in every call, and
    a bound method's is built each time: a fifth of the time of a dry run of 10,000 runs."""

    def call(wildcards: Any, *others: Any, **given: Any) -> Any:
        return method(wildcards, *others, **given)

    call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return call


def _ancient(files: list[Any]) -> list[Any]:
    return [ancient(file) for file in files]
