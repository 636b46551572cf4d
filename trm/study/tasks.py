"""What identities and sizes need to know of each task. Imports no numpy: the Snakefile needs it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

from trm.study.schema import TASKS, DataConfig, EvaluationConfig, RunConfig

NO_SYMMETRIES = (
    "{} has no symmetries for restarts and views: give evaluation.start_noise or step_noise, or no "
    "evaluation.restarts, and no evaluation.view_steps"
)
GUESS_FROM = 16
"""Supervision steps before a view shows guesses, which delay the answers to puzzles that need none."""


@dataclass(frozen=True)
class DataShape:
    """Sizes that a model depends on."""

    seq_len: int
    """Cells of a puzzle."""
    vocab_size: int
    """Distinct tokens, padding included."""
    num_puzzle_identifiers: int | None
    """Rows of the puzzle embedding; None: known when the data set is built (ARC: one per augmented task)."""


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
    """A data set on the Hugging Face Hub, divided into train.csv and test.csv."""

    repository: str
    revision: str
    """Commit."""
    sha256: dict[str, str]
    """File name -> SHA-256, train first."""
    first_revision: str
    """The revision of identities without checksums; never changes. Later revisions add their checksums."""


class Cell(NamedTuple):
    """A token as drawn in figures."""

    text: str
    colour: str = ""
    """Background; empty: chosen by whether the cell is given, wrong or neither."""


class TaskSpec(ABC):
    """A task's interpretation of the data section."""

    sources: tuple[str, ...]
    """Values of `data.source` that have puzzles of this task."""
    official: OfficialFiles | None = None
    """The published data set, for `source: official`."""
    published: tuple[int, int] | None = None
    """Numbers of puzzles in the published data set: for training and validation, and for testing."""
    votes = False
    """Whether augmented copies of a test puzzle vote on its answer."""
    difficulty = "difficulty rating"
    """What a puzzle's rating is called in figures."""
    takes_hints = False
    """Whether blank cells can be filled in from the answer (`data.hints`)."""
    boxed = False
    """Whether grids have boxes of `data.box_rows` by `data.box_cols`."""
    symmetric = False
    """Whether the rules have symmetries (`Task.symmetries`), under which restarts see a puzzle."""
    most_copies = float("inf")
    """Copies of a puzzle that differ from it and from one another; further ones repeat these."""
    blank: int | None = None
    """Token of an unknown cell in a question, whose other cells the answer repeats; None: every cell counts."""

    def sorted_by(self, data: DataConfig) -> tuple[str, ...]:
        """In what test puzzles may differ, so that figures can sort them by it: `clues`, `rating`."""
        return ("clues", "rating")

    @abstractmethod
    def side(self, data: DataConfig) -> int:
        """Rows of a puzzle, for names such as sudoku9."""

    @abstractmethod
    def shape(self, data: DataConfig) -> DataShape:
        """Sizes of the data set's rows."""

    def check(self, data: DataConfig) -> None:  # noqa: B027 (most tasks refuse nothing)
        """Raise UserError for a combination of fields that no data set can have."""

    def fields(self, data: DataConfig) -> dict[str, Any]:
        """Fields of the identity that every source reads."""
        return {}

    def file_names(self, files: Sequence[str]) -> tuple[str, ...]:
        """What the data set takes from the names of its files, one text each; empty: nothing. UserError: they are
        ambiguous."""
        return ()

    def generated_fields(self, data: DataConfig) -> dict[str, Any]:
        """Fields of the identity that `source: generate` reads besides the pool's size."""
        return {}

    def most_generated(self, data: DataConfig) -> int:
        """Number of puzzles that can be generated and are not equivalent; 0: too many to count."""
        return 0

    def generates_all(self, data: DataConfig) -> bool:
        """Whether a pool of 0 means all puzzles."""
        return False

    def recognises(self, seq_len: int, vocab_size: int) -> bool:
        """Whether a data set of these sizes, built by the reference tools, is of this task."""
        return False

    def glyph(self, token: int) -> str:
        """The character of a token; empty for a blank cell and for padding."""
        return str(token - (self.blank or 0)) if token not in (0, self.blank) else ""

    def is_given(self, token: int) -> bool:
        """Whether a token of a question is a given cell, which the answer repeats."""
        return self.blank is not None and token not in (0, self.blank)

    def cell(self, token: int, wrong: bool) -> Cell:
        """A token as drawn in figures; `wrong`: it differs from the right answer."""
        return Cell(self.glyph(token))


@cache
def spec_of(task: str) -> TaskSpec:
    spec: TaskSpec = import_module(f"{TASKS[task]}.spec").SPEC
    return spec


def recognised(seq_len: int, vocab_size: int) -> str:
    """The task of a data set without a manifest, by its sizes; the first task if none recognises them."""
    first = next(iter(TASKS))
    return next((name for name in TASKS if spec_of(name).recognises(seq_len, vocab_size)), first)


def no_guesses(run: RunConfig, evaluation: EvaluationConfig) -> str:
    """Why `evaluation.view_guesses` would change nothing; empty if it changes something, or is 0."""
    steps, guesses = evaluation.view_steps, evaluation.view_guesses
    if not guesses:
        return ""
    if not spec_of(run.data.task).takes_hints:
        return f"{run.data.task} has no blank cells that a view can show filled: leave out evaluation.view_guesses"
    first = next(turn * steps for turn in count(1, 2) if turn * steps >= GUESS_FROM)
    longest = max((*evaluation.unroll, evaluation.steps or run.model.halt_max_steps))
    if first < longest:
        return ""
    return (
        f"evaluation.view_guesses={guesses} changes nothing: the first guess comes after step {first}, and no pass "
        f"takes more than {longest}: raise evaluation.unroll or evaluation.steps, or leave it out"
    )
