"""Functions that Snakemake calls for the inputs and parameters of each job.

A parameter whose function takes `output` is derived in Snakemake's sense: a change of it is no reason to run the job
again. Everything that no result depends on (threads, log settings, checkpoint folders, paths of input files) reaches
its command this way.
"""

from __future__ import annotations

from typing import Any

from snakemake.io import ancient

from trm.pipeline.estimates import Estimates
from trm.pipeline.places import Place
from trm.pipeline.preflight import Preflight
from trm.pipeline.workflow import Workflow


class Inputs:
    """Input and parameter functions of the rules."""

    def __init__(self, study: Workflow, estimates: Estimates, place: Place, check: Preflight):
        self._study, self._estimates, self._place, self._check = study, estimates, place, check
        self._runtime = study.study.scale.runtime.model_dump_json(exclude_defaults=True)

    # a pool of puzzles and its data sets

    def source_preflight(self, wildcards: Any) -> list[Any]:
        """The pod's check, for a pool that is not there yet."""
        return [ancient(file) for file in self._check.before(*self._study.source_outputs(wildcards.source))]

    def source_files(self, wildcards: Any, output: Any) -> str:
        """Comma-separated input files. Derived: another path to the same bytes makes no other pool."""
        return self._study.source_files(wildcards.source)

    def dataset_preflight(self, wildcards: Any) -> list[Any]:
        """The pod's check, for a data set that is not there yet."""
        return [ancient(file) for file in self._check.before(*self._study.dataset_outputs(wildcards.dataset))]

    def dataset_manifest(self, wildcards: Any) -> list[Any]:
        """Manifest of the pool that a data set is cut from."""
        return self._source_file(wildcards.dataset, 0)

    def dataset_puzzles(self, wildcards: Any) -> list[Any]:
        """Puzzles of that pool."""
        return self._source_file(wildcards.dataset, 1)

    def _source_file(self, dataset: str, place: int) -> list[Any]:
        study = self._study
        path = study.source_outputs(study.source_of_dataset(dataset))[place]
        return [ancient(file) for file in self._place.needed(path, study.dataset_outputs(dataset))]

    # training

    def train_dataset(self, wildcards: Any) -> list[Any]:
        """Manifest of the run's data set. Ancient: its name says what is in it, so a data set that was restored or
        copied trains nothing again."""
        outputs = self._study.run_outputs(wildcards.run)
        return self._dataset(wildcards.run, outputs)

    def train_preflight(self, wildcards: Any) -> list[Any]:
        """The pod's check, for a run that is not finished."""
        return [ancient(file) for file in self._check.before(*self._study.run_outputs(wildcards.run))]

    def train_initial(self, wildcards: Any) -> list[Any]:
        """Weights of the run that `training.init_from` names."""
        outputs = self._study.run_outputs(wildcards.run)
        needed = (self._place.needed(path, outputs) for path in self._study.initial_weights(wildcards.run))
        return [ancient(file) for files in needed for file in files]

    def launcher(self, wildcards: Any, output: Any) -> str:
        """What starts the command on several hosts or several times on this machine; see `Estimates.launcher`."""
        return self._estimates.launcher(wildcards)

    def sentence(self, wildcards: Any, output: Any) -> str:
        """Expected cost of the run, for its message."""
        return self._estimates.sentence(wildcards)

    def train_options(self, wildcards: Any, output: Any, resources: Any) -> list[str]:
        """Options of `trm train` that its result does not depend on. Where the profile limits the time of a job
        (`max_runtime`), the run stops before that and goes on in a later one."""
        words = ["--threads", str(self._study.study.scale.threads), "--runtime", self._runtime]
        words += ["--checkpoints", self._checkpoints(wildcards.run)]
        if self._estimates.max_minutes:
            words += ["--time-limit", str(resources.runtime)]
        return [*words, *self._estimates.log_every(wildcards), *self._estimates.evaluations(wildcards)]

    # evaluation

    def evaluate_dataset(self, wildcards: Any) -> list[Any]:
        """Manifest of the run's data set, unless the evaluation is there already."""
        return self._dataset(
            wildcards.run, [f"results/runs/{wildcards.run}/evaluation-{wildcards.evaluation}.json"]
        )

    def checkpoints(self, wildcards: Any, output: Any) -> str:
        """Folder or gs:// prefix of the run's checkpoints."""
        return self._checkpoints(wildcards.run)

    def _checkpoints(self, run: str) -> str:
        return f"{self._place.checkpoints}/{run}"

    def _dataset(self, run: str, outputs: list[str]) -> list[Any]:
        manifest = self._study.dataset_manifest(run)
        return [ancient(file) for file in self._place.needed(manifest, outputs, retrieve=False)]

    # tables and the report

    def study_options(self, wildcards: Any, output: Any) -> str:
        """Options by which a command sees the same study as the Snakefile."""
        return self._study.options

    def storage_root(self, wildcards: Any, output: Any) -> str:
        """Where files of the bucket lie on this machine."""
        return self._place.root
