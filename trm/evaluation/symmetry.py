"""Random symmetries of a task's rules, under which restarts see a puzzle.

A model is not equivariant: it reads the same puzzle differently under each symmetry, so that each is another attempt.

Shapes: B puzzles, S cells, V symbols.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trm.data import rng
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import NO_SYMMETRIES, spec_of
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


def restart_symmetries(config: DataConfig, restarts: int, noise: float = 0.0) -> list[Symmetry]:
    """The symmetry of each restart, the same for every puzzle: none for the first, nor with `noise`.

    Raises:
        UserError: the task has no symmetries.
    """
    shape = spec_of(config.task).shape(config)
    identity = Symmetry(np.arange(shape.vocab_size, dtype=np.uint8), np.arange(shape.seq_len, dtype=np.int16))
    if noise:
        return [identity] * restarts
    maps = task_of(config.task).symmetries(
        config, rng.key(rng.root_key(0, "restart"), np.arange(1, restarts))
    )
    if maps is None:
        raise UserError(NO_SYMMETRIES.format(config.task))
    return [identity, *map(Symmetry, *maps)]
