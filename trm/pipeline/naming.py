"""Names of what the pipeline makes, by content, and the records that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trm.analysis.specs import Figure as FigureSpec
from trm.analysis.specs import FitSpec
from trm.study.dataset_identity import dataset_identity, source_identity
from trm.study.fingerprint import canonical_json, digest, task_slug
from trm.study.points import Point
from trm.study.schema import DataConfig

ANALYSIS_VERSION = 13
"""Raised when tables, fits or figures are computed differently: all of them are then rebuilt; no run is."""
ARRAYS = (
    "inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices", "ratings", "sources",
)  # fmt: skip
DATASET_FILES = tuple(
    f"{split}/{file}"
    for split in ("train", "validation", "test")
    for file in ("dataset.json", *(f"all__{array}.npy" for array in ARRAYS))
)
EVENTS = "TRM_EVENTS"
"""Environment variable with the path of the file through which Snakemake's process tells the console what happens."""
REPORT = "results/report.html"
RUN_FILES = ("training.json", "history.csv", "weights.safetensors")


@dataclass(frozen=True)
class Fit:
    """One fit: its name by content, its specification and the tables it reads."""

    name: str
    spec: FitSpec
    tables: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"results/fits/{self.name}.json"

    @property
    def json(self) -> str:
        return canonical_json(self.spec.model_dump(mode="json"))


@dataclass(frozen=True)
class Figure:
    """One figure: its file stem, its specification, the experiments whose tables and the fits that it reads."""

    stem: str
    spec: FigureSpec
    experiments: tuple[str, ...]
    tables: tuple[str, ...]
    fits: tuple[Fit, ...]
    identity: str

    @property
    def name(self) -> str:
        """Name of the files by content."""
        return f"{self.stem}-{self.identity[:8]}"

    @property
    def files(self) -> list[str]:
        """PDF, PNG and caption."""
        return [f"results/figures/{self.name}{end}" for end in (".pdf", ".png", ".json")]

    @property
    def json(self) -> str:
        return canonical_json(self.spec.model_dump(mode="json"))

    @property
    def reading(self) -> str:
        """How to read a figure of its kind."""
        return self.spec.reading


def published(stem: str) -> str:
    """Where a figure is published."""
    return f"results/plots/{stem}.pdf"


@cache
def source_name(data: DataConfig) -> str:
    """Folder of the pool of puzzles that a data set is cut from."""
    return f"{task_slug(data)}-{data.source}-{digest(source_identity(data))[:8]}"


@cache
def dataset_name(data: DataConfig) -> str:
    """Folder of a data set."""
    size = f"p{data.train_puzzles or 'all'}a{data.augmentations}"
    return f"{task_slug(data)}-{size}-{digest(dataset_identity(data))[:8]}"


def points_identity(points: tuple[Point, ...]) -> list[Any]:
    """What a table depends on."""
    return [
        [point.coords, point.label, [run.name for run in point.runs], point.evaluation_file]
        for point in points
    ]


def style_digest(path: str) -> str:
    """Digest of a style file without comments and blank lines."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ""
    return digest([text for line in lines if (text := line.split("#", 1)[0].strip())])
