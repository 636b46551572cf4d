"""A small study built once by the real pipeline; tests change copies of it and ask Snakemake what would run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.training.conftest import dataset_folder  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[2]
PIPELINE = ("Snakefile", "workflow", "profiles", "config", "envs")
STUDY = {
    "name": "small",
    "scales": {
        scale: {"hardware": "laptop", "seeds": [0, 1], "runtime": {"log_every": 2, "evals": 1}}
        for scale in ("laptop", "other")
    },
    "base": {
        "model": {"d_model": 16, "h_cycles": 1, "l_cycles": 1, "halt_max_steps": 2, "puzzle_tokens": 1},
        "data": {
            "source": "generate",
            "box_rows": 2,
            "box_cols": 2,
            "clues_min": 4,
            "clues_max": 8,
            "train_puzzles": 20,
            "augmentations": 0,
            "validation_puzzles": 8,
            "test_puzzles": 16,
        },
        "training": {"batch_size": 8, "steps": 4, "warmup_steps": 1, "precision": "float32"},
        "evaluation": {"train_puzzles": 8, "traces": 1},
    },
    "experiments": {
        "data_size": {
            "question": "How does the error fall with puzzles?",
            "grid": {"product": {"data.train_puzzles": [10, 20]}},
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
            "panels": [{"experiment": "data_size", "x": "data.train_puzzles", "fit": "power_law"}],
        }
    ],
}


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
        command = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", *words]
        result = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False
        )
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return result

    def would_run(self, *words: str) -> dict[str, int]:
        """Rule -> number of jobs of a dry run; `said` is its plan."""
        done = self.snakemake(*words, "-n")
        text, self.said = done.stdout, done.stderr.partition("(study ")[2]
        assert "cannot be locked" not in text
        stats = text.partition("Job stats:")[2].partition("total")[0]
        return {rule: int(count) for rule, count in re.findall(r"^(\w+)\s+(\d+)$", stats, re.MULTILINE)}


def new_project(folder: Path, study: dict) -> Project:
    """The pipeline's files and a study, which every profile runs, without results."""
    for name in PIPELINE:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
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
