"""Names by content of what the pipeline makes, and the small records that carry them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trm.analysis.specs import Figure as FigureSpec
from trm.analysis.specs import FitSpec
from trm.errors import UserError
from trm.study.dataset_identity import dataset_identity, source_identity
from trm.study.fingerprint import digest, task_slug
from trm.study.grid import Point
from trm.study.reading import parse_yaml
from trm.study.schema import DataConfig

ANALYSIS_VERSION = 5
"""Raised when tables, fits or figures are computed differently: all of them are then made anew, no run is."""
DATASET_FILES = tuple(
    f"{split}/{file}"
    for split in ("train", "validation", "test")
    for file in (
        "dataset.json",
        *(
            f"all__{array}.npy"
            for array in (
                "inputs",
                "labels",
                "puzzle_identifiers",
                "puzzle_indices",
                "group_indices",
                "ratings",
                "sources",
            )
        ),
    )
)

REPORT = "results/report.html"
RUN_FILES = ("training.json", "history.csv", "weights.safetensors")

NEXT_PAIR = re.compile(r"[\s,]+(?=[A-Za-z_]\w*(?:\.\w+)+\s*=)")
"""What stands between two overrides of one text; a comma inside a value is followed by no `section.key=`."""


@dataclass(frozen=True)
class Fit:
    """One fit: the file by content, its specification and the tables it reads."""

    name: str
    spec: FitSpec
    experiments: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """One figure: its file stem, its specification, the experiments whose tables and the fits that it reads."""

    stem: str
    spec: FigureSpec
    experiments: tuple[str, ...]
    fits: tuple[Fit, ...]
    identity: str

    @property
    def name(self) -> str:
        """Name of the file by content."""
        return f"{self.stem}-{self.identity[:8]}"


def published(stem: str) -> str:
    return f"results/plots/{stem}.pdf"


def parse_overrides(value: Any) -> dict[str, Any]:
    """`set` of Snakemake's config or `--set`: a mapping, or `key=value` texts separated by spaces or commas.

    Values are read as YAML, so 1e-3 is a number and [1, 2] a list.
    """
    if not value:
        return {}
    if isinstance(value, dict):
        return value
    texts = [str(text).strip() for text in (value if isinstance(value, list) else [value])]
    overrides = {}
    for pair in (pair for text in texts for pair in NEXT_PAIR.split(text)):
        key, sign, text = str(pair).partition("=")
        if not sign:
            raise UserError(f"--set {pair}: must be key=value, such as training.steps=1000")
        overrides[key.strip()] = parse_yaml(text, f"--set {key.strip()}")
    return overrides


@cache
def source_name(data: DataConfig) -> str:
    return f"{task_slug(data)}-{data.source}-{digest(source_identity(data))[:8]}"


@cache
def dataset_name(data: DataConfig) -> str:
    size = f"p{data.train_puzzles or 'all'}a{data.augmentations}"
    return f"{task_slug(data)}-{size}-{digest(dataset_identity(data))[:8]}"


def points_identity(points: tuple[Point, ...]) -> list[Any]:
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
