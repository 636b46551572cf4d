"""Random symmetries of a task's rules, under which restarts, and the parts of one pass, see a puzzle.

A model is not equivariant: it reads the same puzzle differently under each symmetry, so that each is another attempt.

Shapes: B puzzles, S cells, V symbols.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trm.data import rng
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import GUESS_FROM, NO_SYMMETRIES, spec_of
from trm.tasks import task_of


class Symmetry(NamedTuple):
    """A permutation of the cells, then of the symbols, as `trm.tasks.base.Augmenter.maps`."""

    tokens: np.ndarray
    """New symbol of each symbol, uint8 [V]."""
    cells: np.ndarray
    """Source of each cell, int16 [S]."""

    def apply(self, grids: Tensor) -> Tensor:
        """Grids [B, S] of symbols under the symmetry."""
        tokens, cells = self._on(grids)
        return tokens[grids[:, cells].long()]

    def undo(self, grids: Tensor) -> Tensor:
        """The grids [B, S] of which `apply` made `grids`."""
        tokens, cells = self._on(grids)
        return tokens.argsort().to(grids.dtype)[grids[:, cells.argsort()].long()]

    def _on(self, grids: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.from_numpy(self.tokens).to(grids.device, grids.dtype)
        return tokens, torch.from_numpy(self.cells.astype(np.int64)).to(grids.device)


def restart_symmetries(config: DataConfig, restarts: int, noise: bool = False) -> list[Symmetry]:
    """The symmetry of each restart, the same for every puzzle: none for the first, nor with `noise`.

    Raises:
        UserError: the task has no symmetries.
    """
    shape = spec_of(config.task).shape(config)
    identity = Symmetry(np.arange(shape.vocab_size, dtype=np.uint8), np.arange(shape.seq_len, dtype=np.int16))
    if noise:
        return [identity] * restarts
    return [identity, *_drawn(config, "restart", restarts - 1)]


class Views(NamedTuple):
    """Orders of the cells in which one pass sees a puzzle, one after another."""

    steps: int
    """Supervision steps with each of them; the first ones see the puzzle as it is."""
    cells: list[np.ndarray]
    """Source of each cell, int64 [S]; after the last comes the first of the list."""
    puzzle_every: int = 1
    """The first of this many views sees the puzzle embedding, the others zeros in its place."""
    guesses: int = 0
    """Every second view from step `GUESS_FROM` on sees this many of its first blank cells filled with the last
    answer."""

    def at(self, taken: int) -> np.ndarray | None:
        """The new order after `taken` steps; None: it stays."""
        turn, since = divmod(taken, self.steps)
        return None if since or not turn else self.cells[(turn - 1) % len(self.cells)]

    def show_puzzle(self, taken: int) -> bool:
        """Whether the view after `taken` steps sees the puzzle embedding."""
        return taken // self.steps % self.puzzle_every == 0

    def guesses_at(self, taken: int) -> int:
        """How many blank cells the view after `taken` steps sees filled."""
        return self.guesses * (taken // self.steps % 2) * (taken >= GUESS_FROM)


def random_views(
    config: DataConfig, steps: int, most: int, puzzle_every: int = 1, guesses: int = 0
) -> Views | None:
    """A view for each `steps` supervision steps of a pass of at most `most`, the same for every puzzle; None: `steps`
    is 0, or the pass ends before the second view.

    Raises:
        UserError: the task has no symmetries.
    """
    if not steps or most <= steps:
        return None
    drawn = _drawn(config, "view", (most - 1) // steps)
    return Views(steps, [symmetry.cells.astype(np.int64) for symmetry in drawn], puzzle_every, guesses)


def _drawn(config: DataConfig, purpose: str, count: int) -> list[Symmetry]:
    """Random symmetries, of which more begin with the same ones. UserError: the task has none."""
    maps = task_of(config.task).symmetries(config, rng.key(rng.root_key(0, purpose), np.arange(1, count + 1)))
    if maps is None:
        raise UserError(NO_SYMMETRIES.format(config.task))
    return list(map(Symmetry, *maps))
