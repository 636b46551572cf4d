"""The tasks by name, and what names and sizes depend on of each: no numpy, the Snakefile imports it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trm.study.schema import DataConfig

TASKS = {"sudoku": "trm.tasks.sudoku", "maze": "trm.tasks.maze", "arc": "trm.tasks.arc"}
"""Name -> package with a `spec` and a `task` module. A new task is a line here and its folder (docs/extending.md); the
packages are loaded by name, as plugins are, when their task is first asked for."""

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASKS)]


@dataclass(frozen=True)
class DataShape:
    """Sizes that a model is built for."""

    seq_len: int
    """Cells of a puzzle."""
    vocab_size: int
    """Distinct tokens, padding included."""
    num_puzzle_identifiers: int | None
    """Rows of the puzzle embedding; None: known only once the data set is built (ARC: one per augmented task)."""


class TaskSpec(ABC):
    """What a data section says of one task."""

    sources: tuple[str, ...]
    """Values of `data.source` that have such puzzles."""
    published: tuple[int, int] | None = None
    """Puzzles of the published data set: for training and validation, and for testing."""
    votes = False
    """Whether augmented copies of a test puzzle vote for its answer."""

    @abstractmethod
    def side(self, data: DataConfig) -> int:
        """Rows of a puzzle, for names such as sudoku9."""

    @abstractmethod
    def shape(self, data: DataConfig) -> DataShape:
        """Sizes of the data set's rows."""

    def check(self, data: DataConfig) -> None:  # noqa: B027 (most tasks refuse nothing)
        """Refuse a combination of fields that no data set can have. UserError: which, and what to do."""

    def fields(self, data: DataConfig) -> dict[str, Any]:
        """Fields of the identity that every source reads."""
        return {}

    def generated_fields(self, data: DataConfig) -> dict[str, Any]:
        """Fields of the identity that `source: generate` reads beside the pool's size."""
        return {}

    def most_generated(self, data: DataConfig) -> int:
        """Puzzles that differ by more than a symmetry, all that can be generated; 0: too many to count."""
        return 0

    def generates_all(self, data: DataConfig) -> bool:
        """Whether a pool of 0 means every puzzle there is."""
        return False


@cache
def spec_of(task: str) -> TaskSpec:
    """The spec of a task."""
    found: TaskSpec = import_module(f"{TASKS[task]}.spec").SPEC
    return found
