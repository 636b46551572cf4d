"""The Snakefile's `study`: what its rules ask of the catalogue, the selection, the plan and the files.

A parameter whose function takes `output` is derived in Snakemake's sense: a change of it is no reason to run the job
again. Everything that no result depends on (threads, log settings, checkpoint folders, paths of input files) reaches
its command this way.
"""

import atexit
import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from snakemake.io import ancient
from snakemake.shell import shell
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trm.errors import UserError
from trm.io import shipped
from trm.launch.controller import Controller, refuse
from trm.pipeline.catalogue import source_name
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import REPORT, Project, check_sizes, open_project
from trm.pipeline.settings import Settings
from trm.provenance import commit_in_words
from trm.study.fingerprint import digest

LOCK = shipped("envs/tpu/requirements.lock")


class Jobs:
    """The jobs of a study. `snakemake`: Snakemake's `workflow` object; None: outside a Snakefile."""

    def __init__(self, project: Project, snakemake: Any = None):
        self.settings, self.options, self.scale = project.settings, project.options, project.study.scale
        self.catalogue, self.selection, self.file = project.catalogue, project.selection, project.files
        self.plan = Estimates(project)
        self.project, self._snakemake = project, snakemake
        self.preflight = preflight_file(self.settings, self.plan.pod_hosts)
        """What the pod's check writes; empty: the profile asks for none."""

    def _repeats(self) -> bool:
        """Whether jobs may run whose outputs exist: --forcerun or --forceall was given, or this process runs one job.
        Snakemake's settings are complete only after parsing."""
        if self._snakemake is None:
            return False
        asked = self._snakemake.dag_settings  # None in --lint
        return not self._snakemake.is_main_process or bool(asked and (asked.forcerun or asked.forceall))

    def unless_done(self, path: str, outputs: Iterable[str], retrieve: bool | None = None) -> list[Any]:
        """An input, or nothing if it is not there but everything that is made from it is.

        Snakemake runs a finished job again if a missing input of it, ancient or not, is made for another job (9.27,
        `update_needrun`). Ancient, because a name says what is in a file: one that was copied makes nothing stale.
        `outputs`: what the job makes. `retrieve`: as for `Files`.
        """
        exists = self.file.exists
        if not self._repeats() and not exists(path) and all(map(exists, outputs)):
            return []
        return [ancient(self.file(path, retrieve))]

    def after_preflight(self, outputs: Iterable[str]) -> list[Any]:
        """The pod's check, for a job that has something to do: the others would run again after a new check."""
        if not self.preflight or all(map(self.file.exists, outputs)):
            return []
        return [ancient(self.file(self.preflight, retrieve=False))]

    def source_file(self, dataset: str, name: str) -> list[Any]:
        """A file of the pool that the data set is cut from."""
        run = self.catalogue.find(self.catalogue.datasets, dataset, "data set")
        path = f"results/sources/{source_name(run.config.data)}/{name}"
        return self.unless_done(path, self.catalogue.dataset_files(dataset))

    def run_dataset(self, run: str, *outputs: str) -> list[Any]:
        """Manifest of the run's data set, for a job that makes `outputs`."""
        return self.unless_done(self.catalogue.dataset_manifest(run), outputs, retrieve=False)

    def initial_weights(self, run: str) -> list[Any]:
        """Weights of the run that `training.init_from` names. UserError: the study does not train that run, and its
        weights do not exist."""
        start = self.catalogue.run(run).config.training.init_from
        path = f"results/runs/{start}/weights.safetensors"
        if not start:
            return []
        if start not in self.catalogue.runs:  # of another study: no rule of this one can make it
            if not self.file.exists(path):
                raise UserError(f"training.init_from={start}: {path} does not exist; name a finished run")
            return []
        return self.unless_done(path, self.catalogue.run_files(run))

    def trained(self, run: str) -> list[Any]:
        """The run's training.json and weights. Ancient, so that a copied run is not evaluated again; unless jobs are
        repeated, since a run that is trained again has other weights."""
        files = [self.file(path) for path in self.catalogue.run_files(run)[::2]]
        return files if self._repeats() else [ancient(file) for file in files]

    def with_time_limit(self, options: Callable[[Any], list[str]]) -> Callable[..., list[str]]:
        """A parameter of `options` of the wildcards, with the job's limit where the profile limits the time of jobs
        (`max_runtime`): the command stops before it, and another job goes on. Without a limit nothing needs the
        resources of thousands of jobs."""
        if not self.settings.max_runtime:
            return lambda wildcards, output: options(wildcards)
        return lambda wildcards, output, resources: [
            *options(wildcards), "--time-limit", str(resources.runtime)
        ]  # fmt: skip

    def train_options(self, run: str) -> list[str]:
        """Options of `trm train` that its result does not depend on."""
        options = self.project.study.runtime[run].model_dump_json(exclude_defaults=True)
        words = ["--threads", str(self.scale.threads), "--runtime", options]
        words += ["--checkpoints", f"{self.file.checkpoints}/{run}"]
        if (workers := self.plan.workers(run)) > 1:
            words += ["--workers", str(workers), "--nodes", str(self.plan.nodes(run))]
        return words

    def _counts_as_missing(self, path: str) -> None:
        """Have Snakemake make a file whose name is fixed, if it is not the one that the study asks for. Snakemake looks
        at its own records instead, which are of this folder only, and not consulted with `--rerun-triggers mtime`."""
        if self._snakemake is not None and path in self.project.outdated and Path(path).exists():
            self._snakemake.dag.forcefiles.add(path)

    def tables_of_figure(self, stem: str) -> tuple[str, ...]:
        """Tables that a figure shows."""
        figure = self.selection.figure(stem)
        self._counts_as_missing(figure.files[0])
        return figure.tables

    def report(self) -> list[str]:
        """Tables, fits and figures of the report."""
        self._counts_as_missing(REPORT)
        tables = map(self.catalogue.table_file, self.selection.experiments)
        shown = self.selection.shown
        fits = dict.fromkeys(fit.file for figure in shown for fit in figure.fits)
        return [*tables, *fits, *(file for figure in shown for file in figure.files)]

    def everything(self) -> list[str]:
        """The report and every figure that it shows."""
        self.project.check_sizes()
        return [REPORT, *(file for figure in self.selection.shown for file in figure.files[:2])]

    def target(self, name: str) -> list[Any]:
        """Figures of an experiment, or the evaluations of the one grid point of `--point`. UserError: the
        experiment cannot run here."""
        study, label = self.project.study, self.settings.point
        experiment = study.experiment(name)
        if experiment.skip:
            raise UserError(study.why_skipped(experiment.name))
        check_sizes(experiment, self.catalogue.path)
        if not label:
            return self.selection.targets[name]
        return [self.file(f"results/runs/{path}") for path in experiment.point(label).evaluations]


def said(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result; its UserError ends Snakemake with the sentence."""
    try:
        return function(*arguments)
    except UserError as error:
        refuse(error)


def preflight_file(settings: Settings, hosts: int) -> str:
    """What a pod's check writes: one file for each pod, number of hosts and environment. Empty: no check is asked
    for."""
    lock = LOCK.read_text() if settings.preflight == "tpu" else ""
    identity = digest([settings.preflight, settings.pod, hosts, lock])
    return f"results/preflight-{identity[:8]}.json" if settings.preflight else ""


def open_jobs(config: dict[str, Any], storage: Any, snakemake: Any) -> tuple[Jobs, Controller]:
    """The study that the Snakefile is read for, and what listens to Snakemake's events. `storage`, `snakemake`: the
    Snakefile's `storage` and `workflow`. Raises UserError."""
    # Snakemake's graph is no garbage: collecting took a quarter of a dry run of 5,000 points, and a fifth at its end
    gc.set_threshold(200_000, 20, 100)
    atexit.register(gc.freeze)
    project = open_project(config, storage, snakemake.output_settings.dryrun)
    jobs = Jobs(project, snakemake)
    if snakemake.is_main_process:
        project.check_figures()
    if "slurm" in ExecutorPluginRegistry().plugins:
        _use_slurm(project, snakemake)
    if project.files.prefix:
        os.environ.setdefault("TRM_COMMIT", commit_in_words())
    if project.files.prefix and not project.files.unread:
        try:
            from snakemake_executor_plugin_tpu.storage import use_listings
        except ImportError:
            pass  # the bucket works without it: each object is then asked for by itself
        else:
            use_listings(snakemake)
    shell.prefix(shell_prefix(project.settings, deployed(project.settings, snakemake.deployment_settings)))
    return jobs, Controller(project, config, snakemake)


def _use_slurm(project: Project, snakemake: Any) -> None:
    if snakemake.is_main_process:
        from trm.slurm.executor import use_executor

        use_executor(project)
    else:
        from trm.slurm.commands import keep_variables

        keep_variables()


def deployed(settings: Settings, deployment: Any) -> bool:
    """Whether `--sdm` gives each job its Python. `deployment`: Snakemake's settings. UserError: the jobs cannot start
    there."""
    methods = {method.name.lower() for method in deployment.deployment_method}
    contained = "apptainer" in methods and bool(settings.container)
    if contained and settings.nodes > 1:
        raise UserError("nodes > 1 needs srun, which a container does not have: run without --sdm apptainer")
    return contained or "conda" in methods


def shell_prefix(settings: Settings, deployed: bool = False) -> str:
    """Shell text before every rule's command: the interpreter that runs Snakemake comes first in PATH, unless the job
    is `deployed` with its own, and the devices that the profile asks for are in the variables that `open_backend`
    reads. Variables, because they apply to every command of a job, also those without `--backend`."""
    variables = [] if deployed else [f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
    if settings.backend:
        variables.append(f"TRM_BACKEND={settings.backend}")
    if settings.slice and settings.backend == "xla":  # all chips of each host, or the job stops
        variables.append(f"TRM_CHIPS_PER_HOST={settings.slice.chips_per_host}")
    export = f" export {' '.join(variables)};" if variables else ""
    return f"set -euo pipefail;{export} ".replace("{", "{{").replace("}", "}}")  # Snakemake formats it
