"""The tasks by name, and what names and sizes depend on of each: no numpy, the Snakefile imports it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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


class Sizes(NamedTuple):
    """Sizes of a finished data set that the model and the loss depend on."""

    seq_len: int
    """S: cells of a puzzle."""
    vocab: int
    """V: symbols of a cell."""
    num_ids: int
    """Rows of the puzzle table."""
    ignore: int
    """Label of cells that do not count."""


@dataclass(frozen=True)
class OfficialFiles:
    """One published data set on the Hugging Face hub: its own division into train.csv and test.csv."""

    repository: str
    revision: str
    """Commit: its files never change."""
    sha256: dict[str, str]
    """File name -> SHA-256, train first; a download with another digest is refused."""
    first_revision: str
    """What `official` means in identities without checksums. Never changed: a later revision adds its checksums."""


class Cell(NamedTuple):
    """A token as figures draw it."""

    text: str
    colour: str = ""
    """Background; empty: by whether the cell is given, wrong or neither."""


class TaskSpec(ABC):
    """What a data section says of one task."""

    sources: tuple[str, ...]
    """Values of `data.source` that have such puzzles."""
    official: OfficialFiles | None = None
    """The published data set, for `source: official`."""
    published: tuple[int, int] | None = None
    """Puzzles of the published data set: for training and validation, and for testing."""
    votes = False
    """Whether augmented copies of a test puzzle vote for its answer."""
    takes_hints = False
    """Whether blank cells of a question can be filled in from its answer (`data.hints`)."""
    boxed = False
    """Whether grids have boxes of `data.box_rows` by `data.box_cols`."""
    keeps_clues = True
    """Whether the answer shows the given cells of the question again."""

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

    def recognises(self, seq_len: int, vocab_size: int) -> bool:
        """Whether a data set of these sizes, built by the reference's tools, is of this task."""
        return False

    def glyph(self, token: int) -> str:
        """The character of a token; empty for a blank cell and for padding."""
        return str(token - 1) if token >= 2 else ""

    def is_given(self, token: int) -> bool:
        """Whether a question's token is a given cell."""
        return token >= 2

    def cell(self, token: int, wrong: bool) -> Cell:
        """A token as figures draw it; `wrong`: the answer differs there."""
        return Cell(self.glyph(token))


@cache
def spec_of(task: str) -> TaskSpec:
    """The spec of a task."""
    found: TaskSpec = import_module(f"{TASKS[task]}.spec").SPEC
    return found


def recognised(seq_len: int, vocab_size: int) -> str:
    """The task of a data set without a manifest, by its sizes; the first task where none recognises them."""
    first = next(iter(TASKS))
    return next((name for name in TASKS if spec_of(name).recognises(seq_len, vocab_size)), first)
