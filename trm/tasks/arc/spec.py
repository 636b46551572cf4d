"""Identity and sizes of ARC-AGI data."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import Cell, DataShape, TaskSpec

COLOURS = (
    *("#f4f4f0", "#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#8C510A", "#9A9A9A", "#1a1a1a"),
)
"""Colours 0-9 of grids; 0 is the background."""
FAMILIES = ("recolour", "mirror", "fill", "stack", "middle")
"""Families of generated tasks (trm/tasks/arc/generate.py)."""


def check_families(names: tuple[str, ...]) -> None:
    """Raise UserError for a name that is neither a family nor two different ones joined by `+`."""
    for name in names:
        parts = name.split("+")
        if len(parts) > 2 or len(parts) != len(set(parts)) or not set(parts) <= set(FAMILIES):
            raise UserError(
                f"unknown family of ARC tasks {name!r}: choose from {', '.join(FAMILIES)}, or join two by +"
            )


ROLES = {
    **dict.fromkeys(("training", "train", "trainings"), "training"),
    **dict.fromkeys(("evaluation", "evaluations", "eval", "test", "tests", "testing"), "evaluation"),
}
"""Words in the name of a file, or of its folder, and what the tasks in the file are for."""


def role_of(file: str) -> str:
    """`training`, `evaluation`, or empty: what a file's own name says, else that of its folder. UserError: both."""
    for part in Path(file).parts[:-3:-1]:
        found = {ROLES[word] for word in re.findall("[a-z]+", part.lower()) if word in ROLES}
        if len(found) > 1:
            raise UserError(f"data.files: {file}: {part} says both training and evaluation: rename it")
        if found:
            return found.pop()
    return ""


class ArcSpec(TaskSpec):
    """Square canvases of arc_side rows."""

    sources = ("json", "generate")
    votes = True

    def side(self, data: DataConfig) -> int:
        return data.arc_side

    def shape(self, data: DataConfig) -> DataShape:
        return DataShape(data.arc_side**2, 12, None)

    def sorted_by(self, data: DataConfig) -> tuple[str, ...]:
        return ()

    def fields(self, data: DataConfig) -> dict[str, Any]:
        # a later field: names of older data sets must not change
        return {"arc_side": data.arc_side} if data.arc_side != 30 else {}

    def file_names(self, files: Sequence[str]) -> tuple[str, ...]:
        roles = {file: role_of(file) for file in files}
        unclear = [file for file, role in roles.items() if not role]
        if unclear and set(roles.values()) == {"", "training"}:
            first = next(file for file, role in roles.items() if role)
            raise UserError(
                f"data.files: {first} is for training, and the name of {unclear[0]} and of its folder say neither "
                "training nor evaluation: rename it"
            )
        return tuple("/".join(filter(None, (role, Path(file).stem))) for file, role in roles.items())

    def check(self, data: DataConfig) -> None:
        check_families(data.arc_families)
        if data.arc_families and data.source != "generate":
            raise UserError("data.arc_families are for data.source=generate: leave them out")

    def generated_fields(self, data: DataConfig) -> dict[str, Any]:
        return {"arc_families": list(data.arc_families or FAMILIES), "arc_pairs": data.arc_pairs}

    def recognises(self, seq_len: int, vocab_size: int) -> bool:
        return vocab_size == 2 + len(COLOURS)

    def glyph(self, token: int) -> str:
        return str(token - 2) if token >= 2 else ""

    def cell(self, token: int, wrong: bool) -> Cell:
        return Cell(self.glyph(token), COLOURS[token - 2] if token >= 2 else "")


SPEC = ArcSpec()
