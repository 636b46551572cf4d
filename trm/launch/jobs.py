"""The Snakefile's `study`: what its rules ask of the catalogue, the selection, the plan and the files.

A parameter whose function takes `output` is derived in Snakemake's sense: a change of it is no reason to run the job
again. Everything that no result depends on (threads, log settings, checkpoint folders, paths of input files) reaches
its command this way.
"""

import atexit
import gc
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

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

P = ParamSpec("P")
Result = TypeVar("Result")
LOCK = shipped("envs/tpu/requirements.lock")


def ends_snakemake(function: Callable[P, Result]) -> Callable[P, Result]:
    """The function of a rule; its UserError ends Snakemake with the sentence."""

    @wraps(function)
    def asked(*arguments: P.args, **named: P.kwargs) -> Result:
        try:
            return function(*arguments, **named)
        except UserError as error:
            refuse(error)

    # Snakemake asks for it twice a job and function, and to find it out took a tenth of a large dry run
    asked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return asked


def evaluation_of(wildcards: Any) -> str:
    """`<run>/<file>` of an evaluation."""
    return f"{wildcards.run}/evaluation-{wildcards.evaluation}.json"


NAMES: dict[str, Callable[[Any], str]] = {
    "source": lambda wildcards: wildcards.source,
    "dataset": lambda wildcards: wildcards.dataset,
    "train": lambda wildcards: wildcards.run,
    "evaluate": evaluation_of,
}
"""Rules whose jobs differ in resources, and a job's name in the plan."""


class Jobs:
    """The jobs of a study. `snakemake`: Snakemake's `workflow` object; None: outside a Snakefile."""

    def __init__(self, project: Project, snakemake: Any = None):
        self.settings, self.options, self.scale = project.settings, project.options, project.study.scale
        self.catalogue, self.selection, self.file = project.catalogue, project.selection, project.files
        self.plan = Estimates(project)
        self.project, self._snakemake = project, snakemake
        self.preflight = preflight_file(self.settings, self.plan.pod_hosts)
        """What the pod's check writes; empty: the profile asks for none."""

    def resources(self, rule: str) -> dict[str, Any]:
        """Resources of a rule's jobs: numbers, and functions of the wildcards.

        A retry asks for more memory. `stall` is for the TPU plugin, which stops a job that publishes no checkpoint for
        so many minutes and starts it again; `mpi` and `tasks` for the Slurm plugin, for which the command starts a
        process on each node.
        """
        plan = self.plan
        if rule not in NAMES:  # the same for all
            minutes, memory = plan.minutes(rule), plan.memory_mb(rule)
            found: dict[str, Any] = {
                "runtime": minutes,
                "mem_mb": lambda wildcards, attempt: attempt * memory,
            }
            return found | ({"tpu_hosts": plan.pod_hosts} if rule == "preflight" else {})
        name_of, nodes = NAMES[rule], plan.nodes
        found = {
            "runtime": lambda wildcards: plan.minutes(rule, name_of(wildcards)),
            "mem_mb": lambda wildcards, attempt: attempt * plan.memory_mb(rule, name_of(wildcards)),
        }
        if rule == "evaluate":
            found |= {"tpu_hosts": 1, "gpu": self.settings.gpus}
        if rule == "train":
            found |= {
                "tpu_hosts": lambda wildcards: plan.hosts(wildcards.run),
                "gpu": lambda wildcards: plan.gpus(wildcards.run),
                "nodes": lambda wildcards: nodes(wildcards.run),
                "mpi": lambda wildcards: "srun" if nodes(wildcards.run) > 1 else None,
                "tasks": lambda wildcards: n if (n := nodes(wildcards.run)) > 1 else None,
                "tasks_per_gpu": 0,
                "stall": lambda wildcards: plan.stall(wildcards.run),
                # For the TPU plugin as well: runs that differ in their seed only should be equally fast.
                "tpu_like": lambda wildcards: wildcards.run.rpartition("-s")[0],
            }
        return {name: ends_snakemake(item) if callable(item) else item for name, item in found.items()}

    def _repeats(self) -> bool:
        """Whether jobs may run whose outputs exist: --forcerun or --forceall was given, or this process runs one job.
        Snakemake's settings are complete only after parsing."""
        if self._snakemake is None:
            return False
        asked = self._snakemake.dag_settings  # None in --lint
        return not self._snakemake.is_main_process or bool(asked and (asked.forcerun or asked.forceall))

    def _outputs_exist(self, outputs: Iterable[str]) -> bool:
        return all(map(self.file.exists, outputs))

    def _made_from(self, path: str, outputs: Iterable[str], retrieve: bool | None = None) -> list[Any]:
        """An input of a job that makes `outputs`, or nothing if it is not there but all of them are.

        Snakemake runs a finished job again if a missing input of it, ancient or not, is made for another job (9.27,
        `update_needrun`). Ancient, because a name says what is in a file: one that was copied makes nothing stale.
        `retrieve`: as for `Files`.
        """
        if not self._repeats() and not self.file.exists(path) and self._outputs_exist(outputs):
            return []
        return [ancient(self.file(path, retrieve))]

    def preflight_of(self, rule: str) -> Any:
        """Input of a rule: the pod's check, for jobs that have something to do: the others would run again after a new
        check. No function where there is no check, since Snakemake would call it for each of thousands of runs."""
        files: dict[str, Callable[[Any], list[str]]] = {
            "source": lambda wildcards: self.catalogue.source_files(wildcards.source),
            "dataset": lambda wildcards: self.catalogue.dataset_files(wildcards.dataset),
            "train": lambda wildcards: self.catalogue.run_files(wildcards.run),
        }

        def check(wildcards: Any) -> list[Any]:
            done = self._outputs_exist(files[rule](wildcards))
            return [] if done else [ancient(self.file(self.preflight, retrieve=False))]

        return check if self.preflight else []

    @ends_snakemake
    def pool_manifest(self, wildcards: Any) -> list[Any]:
        """Of the pool that the data set is cut from."""
        return self._pool_file(wildcards.dataset, "manifest.json")

    @ends_snakemake
    def pool_puzzles(self, wildcards: Any) -> list[Any]:
        return self._pool_file(wildcards.dataset, "puzzles.npz")

    def _pool_file(self, dataset: str, name: str) -> list[Any]:
        run = self.catalogue.find(self.catalogue.datasets, dataset, "data set")
        path = f"results/sources/{source_name(run.config.data)}/{name}"
        return self._made_from(path, self.catalogue.dataset_files(dataset))

    @ends_snakemake
    def dataset_of_run(self, wildcards: Any) -> list[Any]:
        """Manifest of the data set that the run is trained on."""
        return self._dataset(wildcards.run, self.catalogue.run_files(wildcards.run))

    @ends_snakemake
    def dataset_of_evaluation(self, wildcards: Any) -> list[Any]:
        """Manifest of the data set that the run is evaluated on."""
        return self._dataset(wildcards.run, [f"results/runs/{evaluation_of(wildcards)}"])

    def _dataset(self, run: str, outputs: Iterable[str]) -> list[Any]:
        return self._made_from(self.catalogue.dataset_manifest(run), outputs, retrieve=False)

    @property
    def initial_weights(self) -> Any:
        """Input of `train`: the weights of the run that `training.init_from` names; no function if no run has it."""
        return self._initial_weights if self.catalogue.any_initial_weights else []

    @ends_snakemake
    def _initial_weights(self, wildcards: Any) -> list[Any]:
        """UserError: the study does not train that run, and its weights do not exist."""
        start = self.catalogue.run(wildcards.run).config.training.init_from
        path = f"results/runs/{start}/weights.safetensors"
        if not start:
            return []
        if start not in self.catalogue.runs:  # of another study: no rule of this one can make it
            if not self.file.exists(path):
                raise UserError(f"training.init_from={start}: {path} does not exist; name a finished run")
            return []
        return self._made_from(path, self.catalogue.run_files(wildcards.run))

    @ends_snakemake
    def weights_of_run(self, wildcards: Any) -> list[Any]:
        """The run's training.json and weights. Ancient, so that a copied run is not evaluated again; unless jobs are
        repeated, since a run that is trained again has other weights."""
        files = [self.file(path) for path in self.catalogue.run_files(wildcards.run)[::2]]
        return files if self._repeats() else [ancient(file) for file in files]

    @ends_snakemake
    def config_of_run(self, wildcards: Any) -> str:
        return self.catalogue.run_json(wildcards.run)

    @ends_snakemake
    def config_of_evaluation(self, wildcards: Any) -> str:
        return self.catalogue.evaluation_json(wildcards.run, wildcards.evaluation)

    @ends_snakemake
    def threads_of_run(self, wildcards: Any) -> int:
        return self.plan.threads(wildcards.run)

    @ends_snakemake
    def launcher_of_run(self, wildcards: Any, output: Any) -> str:
        return self.plan.launcher(wildcards.run)

    @ends_snakemake
    def plan_of_run(self, wildcards: Any, output: Any) -> str:
        """What the job's message says of it."""
        return self.plan.sentence(wildcards.run)

    @property
    def train_options(self) -> Callable[..., list[str]]:
        """Options of `trm train` that its result does not depend on."""
        return self._with_time_limit(self._train_options)

    def _train_options(self, wildcards: Any) -> list[str]:
        run = wildcards.run
        options = self.project.study.runtime[run].model_dump_json(exclude_defaults=True)
        words = ["--threads", str(self.scale.threads), "--runtime", options]
        words += ["--checkpoints", f"{self.file.checkpoints}/{run}"]
        if (workers := self.plan.workers(run)) > 1:
            words += ["--workers", str(workers), "--nodes", str(self.plan.nodes(run))]
        return words

    @property
    def evaluate_options(self) -> Callable[..., list[str]]:
        """Options of `trm evaluate` that its result does not depend on."""
        parts = self.file.checkpoints
        return self._with_time_limit(
            lambda wildcards: ["--parts", f"{parts}/{evaluation_of(wildcards).removesuffix('.json')}"]
        )

    def _with_time_limit(self, options: Callable[[Any], list[str]]) -> Callable[..., list[str]]:
        """A parameter of `options` of the wildcards, with the job's limit where the profile limits the time of jobs
        (`max_runtime`): the command stops before it, and another job goes on. Without a limit nothing needs the
        resources of thousands of jobs."""
        if not self.settings.max_runtime:
            return ends_snakemake(lambda wildcards, output: options(wildcards))
        return ends_snakemake(
            lambda wildcards, output, resources: [
                *options(wildcards), "--time-limit", str(resources.runtime)
            ]
        )  # fmt: skip

    def _counts_as_missing(self, path: str) -> None:
        """Have Snakemake make a file whose name is fixed, if it is not the one that the study asks for. Snakemake looks
        at its own records instead, which are of this folder only, and not consulted with `--rerun-triggers mtime`."""
        if self._snakemake is not None and path in self.project.outdated and Path(path).exists():
            self._snakemake.dag.forcefiles.add(path)

    @ends_snakemake
    def tables_of_figure(self, wildcards: Any) -> tuple[str, ...]:
        """Tables that a figure shows."""
        figure = self.selection.figure(wildcards.stem)
        self._counts_as_missing(figure.files[0])
        return figure.tables

    @ends_snakemake
    def shown_in_report(self, wildcards: Any) -> list[str]:
        """Tables, fits and figures of the report."""
        self._counts_as_missing(REPORT)
        tables = map(self.catalogue.table_file, self.selection.experiments)
        shown = self.selection.shown
        fits = dict.fromkeys(fit.file for figure in shown for fit in figure.fits)
        return [*tables, *fits, *(file for figure in shown for file in figure.files)]

    @ends_snakemake
    def everything(self, wildcards: Any) -> list[str]:
        """The report and every figure that it shows."""
        if label := self.settings.point:
            raise UserError(f"--point {label}: name its experiment too, as a target")
        self.project.check_sizes()
        return [REPORT, *(file for figure in self.selection.shown for file in figure.files[:2])]

    @ends_snakemake
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
    return jobs, Controller(project, snakemake)


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
