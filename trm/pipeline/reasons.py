"""Why jobs run, in words of the study: a line for each group of jobs of a dry run."""

from collections import Counter, defaultdict
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from trm.analysis.words import listed
from trm.errors import UserError
from trm.io import differences, read_json
from trm.pipeline.estimates import DRAWING, Job
from trm.pipeline.project import REPORT, Project
from trm.study.fingerprint import RECIPE_VERSION
from trm.study.records import TRAINING
from trm.study.text import count

NOUNS = {
    "preflight": "check", "source": "pool", "dataset": "data set", "train": "run", "evaluate": "evaluation",
    "table": "table", "fit": "fit", "plot": "figure", "html_report": "report",
}  # fmt: skip
"""What a job of each rule makes, in the order of the lines."""
SHOWN = 4
"""Experiments that a line names."""


def reason_lines(project: Project, dag: Any, jobs: dict[Any, Job], owners: dict[Job, str]) -> list[str]:
    """`3 runs: new grid points of data_size`, and the like.

    Args:
        dag: Snakemake's graph.
        jobs: its jobs that would run, with their names here, in the order of NOUNS and of the lines.
        owners: the experiment that a run or an evaluation is counted at.
    """
    words = Words(project, set(jobs.values()), owners)
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for job, known in jobs.items():
        follows = any(other in jobs for other in dag.dependencies[job])
        why, experiment = words.why(known, dag.reason(job), follows)
        groups[why][NOUNS[known.rule]] += 1
        names[why] |= {experiment: None} if experiment else {}
    return [f"{_counted(found)}: {why}{_listed(list(names[why]))}" for why, found in groups.items()]


def _counted(found: Counter[str]) -> str:
    return ", ".join(count(number, noun) for noun, number in found.items())


def _listed(names: list[str]) -> str:
    more = f" and {count(len(names) - SHOWN, 'other')}" if len(names) > SHOWN else ""
    return f" {', '.join(names[:SHOWN])}{more}" if names else ""


class Words:
    """Reasons of single jobs, among the `jobs` that would run. `owners`: see `reason_lines`."""

    def __init__(self, project: Project, jobs: set[Job], owners: dict[Job, str]):
        self._project, self._jobs, self._owners = project, jobs, owners
        self._outdated = {
            Job("html_report") if path == REPORT else Job("plot", Path(path).stem)
            for path in project.outdated
        }
        self._begun: dict[str, set[str]] = {}
        """Experiment -> runs of the grid points of which a run is finished."""
        self._earlier: dict[str, list[Path]] = defaultdict(list)
        with suppress(OSError):
            if not project.files.prefix:  # in a bucket each would cost a request
                for path in Path("results/runs").iterdir():
                    if path.name not in project.runs:
                        self._earlier[path.name[:-9]].append(path)

    def why(self, job: Job, reason: Any, follows: bool) -> tuple[str, str]:
        """Why a job runs, and the experiment that the sentence ends with, if any, with the place of its list.

        Args:
            reason: Snakemake's.
            follows: it reads what another job makes.
        """
        if reason.forced and job not in self._outdated:
            return "forced on the command line", ""
        if reason._incomplete_output:
            return "interrupted before, and not whole", ""
        if reason.params_changed:
            return "made with other settings before", ""
        if reason._updated_input or reason.input_changed or reason.code_changed:
            return "what they are made of has changed", ""
        if job.rule == "train":
            experiment = self._project.study.experiment(self._owners[job])
            return self._of_training(job.name), f"{experiment.name} ({experiment.grid_at})"
        if job.rule == "evaluate" and Job("train", job.name.split("/")[0]) not in self._jobs:
            return "not measured in this way so far, in", self._owners[job]
        if job.rule == "evaluate":
            return "of these runs", ""
        if job in self._outdated and not follows:
            return "missing, or made from something else", ""
        if job.rule in DRAWING:
            return ("from these results" if follows else "new in the study, or deleted"), ""
        return "missing, and the jobs below need them", ""

    def _of_training(self, run: str) -> str:
        project = self._project
        if any(project.files.exists(path) for path in project.catalogue.run_files(run)):
            return "files are missing of runs of"
        earlier = [found for path in self._earlier.get(run[:-9], ()) if (found := _training(path))]
        if earlier and (version := earlier[-1]["recipe_version"]) != RECIPE_VERSION:
            return f"recipe version {version} became {RECIPE_VERSION} in"
        experiment = self._owners[Job("train", run)]
        begun = self._begun.setdefault(experiment, set())
        if not begun:
            points, done = project.study.experiment(experiment).points, project.done
            kept = [{item.name for item in point.runs} for point in points]
            begun |= {""}.union(*(runs for runs in kept if runs & done))
        if begun == {""} and earlier:
            config = project.runs[run].config.model_dump(mode="json")
            changed = min((differences(found["config"], config) for found in earlier), key=len)
            if changed:
                return f"other settings than before ({listed([*changed][:SHOWN])}) in"
        if begun == {""}:
            return "first runs of"
        return "new seeds of" if run in begun else "new grid points of"


@cache
def _training(run: Path) -> dict[str, Any]:
    """`config` and `recipe_version` of a finished run; empty: unknown."""
    with suppress(UserError, ValueError, TypeError, KeyError):
        found = read_json(run / TRAINING)
        return {"config": dict(found["config"]), "recipe_version": int(found["recipe_version"])}
    return {}
