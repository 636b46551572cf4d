"""Functions that Snakemake calls for the inputs and parameters of each job: `of_wildcards` and `untracked` make
one of any function of wildcards, `Inputs` has those that need more than a name.

A parameter whose function takes `output` is derived in Snakemake's sense: a change of it is no reason to run the job
again. Everything that no result depends on (threads, log settings, checkpoint folders, paths of input files) reaches
its command this way.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from snakemake.io import ancient
from snakemake.logging import logger

from trm.errors import UserError
from trm.io import shipped
from trm.pipeline.catalogue import published, source_name
from trm.pipeline.estimates import Estimates
from trm.pipeline.places import Place
from trm.pipeline.project import Project, check_sizes
from trm.pipeline.settings import Settings
from trm.study.fingerprint import digest

LOCK = shipped("envs/tpu/requirements.lock")


def of_wildcards(function: Callable[..., Any], *wildcards: str) -> Callable[[Any], Any]:
    """An input or parameter function: `function` of the values of `wildcards`."""

    def call(values: Any) -> Any:
        try:
            return function(*(getattr(values, name) for name in wildcards))
        except UserError as error:
            refuse(error)

    return call


def refuse(problem: object) -> NoReturn:
    """End Snakemake with a sentence; it shows an exception of a function of the workflow with a traceback."""
    logger.error(str(problem))
    raise SystemExit(1)


def untracked(function: Callable[..., Any], *wildcards: str) -> Callable[[Any, Any], Any]:
    """The same for a parameter whose change is no reason to run the job again."""

    def call(values: Any, output: Any) -> Any:
        return function(*(getattr(values, name) for name in wildcards))

    return call


class PreflightGate:
    """What the rules `preflight`, `source`, `dataset` and `train` need to know.

    Args:
        settings: `preflight` (local, gpu or tpu) requests the check, `pod` names what is checked.
        place: where files live.
        hosts: hosts of the whole pod.
    """

    def __init__(self, settings: Settings, place: Place, hosts: int):
        self.profile, self.hosts, self._place = settings.preflight, hosts, place
        self.wanted = bool(self.profile)
        """Whether this profile requests the check."""
        lock = LOCK.read_text() if self.profile == "tpu" else ""
        identity = digest([self.profile, settings.pod, hosts, lock])
        self._path = f"results/preflight-{identity[:8]}.json"

    @property
    def output(self) -> Any:
        """The file that the check writes: one for each pod, number of hosts and environment."""
        return self._place.file(self._path)

    def before(self, *outputs: str) -> list[Any]:
        """What a job with these outputs waits for: the check, or nothing if all of them exist.

        A job that has nothing to do must not depend on it: Snakemake runs a job again whose missing input, ancient
        or not, is made for the sake of another (9.27, `update_needrun`).
        """
        if not self.wanted or all(self._place.exists(path) for path in outputs):
            return []
        return [self._place.uri(self._path)]

    @property
    def options(self) -> list[str]:
        """Words of the command."""
        bucket = ["--bucket", self._place.prefix] if self._place.prefix else []
        return ["--profile", self.profile, *bucket]


class Inputs:
    """Inputs and parameters of jobs, by the values of their wildcards."""

    def __init__(self, project: Project, estimates: Estimates, check: PreflightGate):
        self._study, self._catalogue, self._selection = project.study, project.catalogue, project.selection
        self._place, self._point = project.place, project.settings.point
        self._estimates, self._check = estimates, check
        self._check_sizes, self._max_runtime = project.check_sizes, project.settings.max_runtime

    def check_before(self, outputs: list[str]) -> list[Any]:
        """The pod's check, for a job whose outputs do not all exist."""
        return _ancient(self._check.before(*outputs))

    def source_file(self, dataset: str, index: int) -> list[Any]:
        """A file of the pool that the data set is cut from: its manifest (0) or its puzzles (1)."""
        run = self._catalogue.find(self._catalogue.datasets, dataset, "data set")
        path = self._catalogue.source_files(source_name(run.config.data))[index]
        return _ancient(self._place.input_unless_done(path, self._catalogue.dataset_files(dataset)))

    def train_dataset(self, run: str) -> list[Any]:
        """Manifest of the run's data set. Ancient: its name says what is in it, so a data set that was restored or
        copied retrains nothing."""
        return self._dataset(run, self._catalogue.run_files(run))

    def train_initial(self, run: str) -> list[Any]:
        """Weights of the run that `training.init_from` names. UserError: the study does not train that run, and its
        weights do not exist."""
        start = self._catalogue.run(run).config.training.init_from
        path = f"results/runs/{start}/weights.safetensors"
        if not start:
            return []
        if start not in self._catalogue.runs:  # of another study: no rule of this one can make it
            if not self._place.exists(path):
                raise UserError(f"training.init_from={start}: {path} does not exist; name a finished run")
            return []
        return _ancient(self._place.input_unless_done(path, self._catalogue.run_files(run)))

    @property
    def train_options(self) -> Callable[..., list[str]]:
        """A function for the options of `trm train` that its result does not depend on.

        Where the profile limits the time of a job (`max_runtime`), the run stops before that, and another job resumes
        it. Without a limit nothing needs the resources of thousands of jobs.
        """
        return self._limited(self._train_options, "run")

    @property
    def evaluate_options(self) -> Callable[..., list[str]]:
        """The same for `trm evaluate`."""
        place = self._place.checkpoints
        return self._limited(
            lambda run, evaluation: ["--parts", f"{place}/{run}/evaluation-{evaluation}"], "run", "evaluation"
        )

    def _limited(self, options: Callable[..., list[str]], *names: str) -> Callable[..., list[str]]:
        if not self._max_runtime:
            return untracked(options, *names)

        def limited(wildcards: Any, output: Any, resources: Any) -> list[str]:
            words = options(*(getattr(wildcards, name) for name in names))
            return [*words, "--time-limit", str(resources.runtime)]

        return limited

    def evaluate_minutes(self, run: str, evaluation: str) -> int:
        return self._estimates.minutes("evaluate", f"{run}/evaluation-{evaluation}.json")

    def evaluate_memory_mb(self, run: str, evaluation: str) -> int:
        return self._estimates.memory_mb("evaluate", f"{run}/evaluation-{evaluation}.json")

    def _train_options(self, run: str) -> list[str]:
        finer = {"log_every": every} if (every := self._study.log_every.get(run)) else {}
        runtime = self._study.scale.runtime.model_copy(update=finer).model_dump_json(exclude_defaults=True)
        words = ["--threads", str(self._study.scale.threads), "--runtime", runtime]
        words += ["--checkpoints", f"{self._place.checkpoints}/{run}"]
        if (workers := self._estimates.workers(run)) > 1:
            words += ["--workers", str(workers), "--nodes", str(self._estimates.nodes(run))]
        return words

    def evaluate_run(self, run: str, evaluation: str) -> list[Any]:
        """The run's training.json and weights. Ancient, so that a copied run is not evaluated again; unless jobs are
        repeated, since a run that is trained again has other weights."""
        files = self._place.files(self._catalogue.run_files(run)[::2])
        return files if self._place.repeats() else _ancient(files)

    def evaluate_dataset(self, run: str, evaluation: str) -> list[Any]:
        """Manifest of the run's data set, unless the evaluation exists."""
        return self._dataset(run, [f"results/runs/{run}/evaluation-{evaluation}.json"])

    def table(self, table: str) -> list[Any]:
        """Evaluations and run files that the table gathers."""
        return self._place.files(self._catalogue.table_inputs(table))

    def report(self) -> list[str]:
        """Tables, fits and figures of the report."""
        tables = map(self._catalogue.table_file, self._selection.experiments)
        shown = self._selection.shown
        fits = dict.fromkeys(fit.file for figure in shown for fit in figure.fits)
        return [*tables, *fits, *(file for figure in shown for file in figure.files)]

    def everything(self) -> list[str]:
        """The report and every figure that it shows."""
        self._check_sizes()
        stems = [figure.stem for figure in self._selection.shown]
        pictures = [published(stem).removesuffix(".pdf") + end for stem in stems for end in (".pdf", ".png")]
        return ["results/report.html", *pictures]

    def target(self, name: str) -> Any:
        """A function for what an experiment publishes, or for the evaluations of the one grid point of `--point`. It
        says so if the experiment cannot run here."""

        def files() -> list[Any]:
            experiment = self._study.experiment(name)
            if experiment.skip:
                raise UserError(self._study.why_skipped(experiment.name))
            check_sizes(experiment, self._catalogue.path)
            if not self._point:
                return self._selection.targets[name]
            return self._place.files(
                f"results/runs/{file}" for file in experiment.point(self._point).evaluations
            )

        return of_wildcards(files)

    def _dataset(self, run: str, outputs: list[str]) -> list[Any]:
        manifest = self._catalogue.dataset_manifest(run)
        return _ancient(self._place.input_unless_done(manifest, outputs, retrieve=False))


def _ancient(files: list[Any]) -> list[Any]:
    return [ancient(file) for file in files]
