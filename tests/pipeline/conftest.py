"""A small study built once by the real pipeline; tests change copies of it and ask Snakemake what would run."""

import re
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.shell import ROOT, python
from tests.training.conftest import DATA, dataset_folder  # noqa: F401 (a fixture)
from trm.pipeline import plan

PIPELINE = ("Snakefile", "workflow", "profiles", "config", "envs")
STUDY = {
    "name": "small",
    "scales": {
        scale: {"hardware": "laptop", "seeds": [0, 1], "runtime": {"log_every": 2, "evals": 1}}
        for scale in ("laptop", "other")
    },
    "base": {
        "model": {"d_model": 16, "h_cycles": 1, "l_cycles": 1, "halt_max_steps": 2, "puzzle_tokens": 1},
        "data": DATA | {"clues_min": 4, "train_puzzles": 20, "validation_puzzles": 8, "test_puzzles": 16},
        "training": {"batch_size": 8, "steps": 4, "warmup_steps": 1, "precision": "float32"},
        "evaluation": {"train_puzzles": 8, "traces": 1},
    },
    "experiments": {
        "data_size": {
            "question": "How does the error fall with puzzles?",
            "grid": {"product": {"data.train_puzzles": [10, 20]}},
            "evaluation": {"restarts": [1, 2]},
            "figures": [{"kind": "law", "x": "data.train_puzzles", "fit": "power_law"}],
        },
        "batch": {
            "question": "Does the batch matter?",
            "grid": {"product": {"training.batch_size": [4, 8]}},
            "figures": [{"kind": "ablation", "x": "training.batch_size"}],
        },
    },
    "figures": [
        {
            "name": "scaling_laws",
            "kind": "scaling_laws",
            "panels": [{"experiment": "data_size", "show": "attempts"}],
        }
    ],
}


def one_run(steps: int, seeds: int = 1, scale: str = "laptop", **runtime: float) -> dict:
    """The small study with one experiment of one point, at one scale."""
    document = deepcopy(STUDY)
    own = document["scales"]["laptop"]
    document["scales"] = {scale: own | {"seeds": list(range(seeds)), "runtime": own["runtime"] | runtime}}
    document["base"]["training"] |= {"steps": steps, "warmup_steps": min(1, steps - 1)}
    one = {"question": "One?", "figures": [{"kind": "curves"}]}
    return document | {"experiments": {"one": one}, "figures": []}


def planned(project, at_once: int = 2) -> dict:
    """The plan of all that the selected experiments train and evaluate."""
    asked = project.selection.experiments
    jobs = dict.fromkeys(job for name in asked for job in plan.measuring(project, name))
    return plan.document(project, jobs, at_once, asked)


class Project:
    """A checkout of the pipeline with its own study and results."""

    def __init__(self, folder: Path):
        self.folder, self.said = folder, ""

    @property
    def study_path(self) -> Path:
        return self.folder / "config/laptop.yaml"

    def edit(self, change) -> None:
        """Change the study by a function of its document."""
        document = yaml.safe_load(self.study_path.read_text())
        change(document)
        self.study_path.write_text(yaml.safe_dump(document, sort_keys=False))

    def snakemake(self, *words: str, check: bool = True) -> subprocess.CompletedProcess:
        """Run Snakemake with the local profile."""
        words = ("-m", "snakemake", "--profile", "profiles/local", *words)
        return python(*words, cwd=self.folder, check=check)

    def run(self, *words: str) -> subprocess.CompletedProcess:
        """`trm study run` with the local profile."""
        words = ("-m", "trm", "study", "run", "--profile", "profiles/local", *words)
        return python(*words, cwd=self.folder)

    def would_run(self, *words: str) -> dict[str, int]:
        """Rule -> number of jobs of a dry run; `said` is its plan."""
        done = self.snakemake(*words, "-n")
        self.said = done.stderr.partition("(study ")[2]
        assert "cannot be locked" not in done.stdout
        return job_stats(done.stdout)


def job_stats(text: str) -> dict[str, int]:
    """Rule -> number of jobs, as a dry run says."""
    stats = text.partition("Job stats:")[2].partition("total")[0]
    return {rule: int(count) for rule, count in re.findall(r"^(\w+)\s+(\d+)$", stats, re.MULTILINE)}


def copy_pipeline(folder: Path) -> None:
    """The pipeline's own files."""
    for name in PIPELINE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, folder / name)


def new_project(folder: Path, study: dict) -> Project:
    """The pipeline's files and a study, which every profile runs, without results."""
    copy_pipeline(folder)
    for name in ("laptop", "experiments", "rehearsal"):
        (folder / f"config/{name}.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    return Project(folder)


@pytest.fixture(scope="session")
def built(once) -> Project:
    """The small study, built."""
    return Project(once("built", lambda folder: new_project(folder, STUDY).snakemake("--cores", "2")))


@pytest.fixture
def project(built, tmp_path) -> Project:
    """A copy of the built study that a test may change."""
    folder = tmp_path / "project"
    shutil.copytree(built.folder, folder, copy_function=shutil.copy2)
    return Project(folder)
