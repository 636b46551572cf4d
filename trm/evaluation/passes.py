"""One pass of supervision steps over a batch: its states, and how the network sees the puzzles.

The token mixer has weights for each place, but a state's numbers mean the same in every place. So a state can follow
its cells into another order in the middle of a pass, and the network goes on with other errors.

Shapes: B puzzles, L tokens, S cells, D width, V symbols.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trm.evaluation.symmetry import Symmetry, Views
from trm.model.act import with_noise
from trm.model.inference import InferenceNetwork

BLANK = 1
"""Token of a blank cell, in every task that takes guesses."""


def pad_rows(net: InferenceNetwork, x_LBD: Tensor, rows: int = 0) -> Tensor:
    """With several devices, pad the embeddings with zeros so that they can be sharded, and to at least `rows` rows, so
    that a smaller last batch reuses the program."""
    if net.multiple == 1:
        return x_LBD
    count = x_LBD.shape[1]
    return F.pad(x_LBD, (0, 0, 0, max(rows, count + -count % net.multiple) - count))


def fill(questions: Tensor, answers: Tensor, guesses: int) -> Tensor:
    """Questions [B, S] with the answers [B, S] in their first `guesses` blank cells."""
    if not guesses:
        return questions
    blank = questions == BLANK
    return torch.where(blank & (blank.cumsum(1) <= guesses), answers.clamp_min(BLANK), questions)


class Noise(NamedTuple):
    """Normal noise of one restart of a batch: its standard deviations, and what the draws are a function of."""

    start: float
    """On both start states."""
    step: float
    """On z_L after every supervision step."""
    restart: int
    first: int
    """First row of the batch."""

    def add(self, z: Tensor, deviation: float, which: int) -> Tensor:
        """`z` plus draw number `which`."""
        return with_noise(z, deviation, self.restart, which, self.first)


NO_NOISE = Noise(0.0, 0.0, 0, 0)


class Pass:
    """States of a batch from the start states on.

    Args:
        inputs, puzzle: symbols [B, S] and puzzle-table rows [B].
        symmetry: of cells and symbols, under which all steps see the puzzles.
        views: orders of the cells on top of it.
        rows: pad the batch to at least this many, see `pad_rows`.
        noise: on the states.
    """

    def __init__(
        self,
        net: InferenceNetwork,
        inputs: Tensor,
        puzzle: Tensor,
        symmetry: Symmetry | None = None,
        views: Views | None = None,
        rows: int = 0,
        noise: Noise = NO_NOISE,
    ):
        self._net, self._puzzle, self._symmetry, self._views, self._rows = net, puzzle, symmetry, views, rows
        self._noise = noise
        self._inputs = inputs if symmetry is None else symmetry.apply(inputs)
        self._answers = self._inputs
        self._cells: np.ndarray | None = None
        self._taken = 0
        self._x = self._embed(self._inputs, puzzle)
        z_H, z_L = net.start(self._x.shape[1], len(self._x))
        self.z_H, self.z_L = noise.add(z_H, noise.start, 0), noise.add(z_L, noise.start, 1)
        self._halt = self.z_H.new_zeros(self._x.shape[1])

    def step(self) -> tuple[Tensor, Tensor]:
        """Take one supervision step: answer logits [S, B, V] in the order of cells of the start, halt logits [B].

        The halt head reads the token of the puzzle embedding, so that views without it keep the last logits.
        """
        if self._views and (cells := self._views.at(self._taken)) is not None:
            self._turn(cells, self._views.show_puzzle(self._taken), self._views.guesses_at(self._taken))
        z_H, z_L, logits, halt = self._net.step(self.z_H, self.z_L, self._x)
        if self._views is None or self._views.show_puzzle(self._taken):
            self._halt = halt
        self._taken += 1
        self.z_H, self.z_L = z_H, self._noise.add(z_L, self._noise.step, 1 + self._taken)
        if self._cells is not None:
            logits = logits[self._index(self._cells.argsort())]
        count = len(self._inputs)
        if self._views and self._views.guesses:
            self._answers = self._symbols(logits[:, :count])
        return logits[:, :count], self._halt[:count]

    def answers(self, logits: Tensor) -> Tensor:
        """The puzzles' answers, uint8 [B, S], by the logits of a step."""
        symbols = self._symbols(logits)
        return symbols if self._symmetry is None else self._symmetry.undo(symbols)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self._inputs, self._puzzle = self._inputs[rows], self._puzzle[rows]
        self._answers, self._halt = self._answers[rows], self._halt[rows]
        self.z_H, self.z_L, self._x = (state[:, rows] for state in (self.z_H, self.z_L, self._x))

    def _embed(self, inputs: Tensor, puzzle: Tensor | None) -> Tensor:
        return pad_rows(self._net, self._net.embed(inputs, puzzle), self._rows)

    def _symbols(self, logits: Tensor) -> Tensor:
        """The likeliest symbols [B, S]."""
        return logits.argmax(-1).t().to(torch.uint8)

    def _turn(self, cells: np.ndarray, show_puzzle: bool, guesses: int) -> None:
        """Put the cells of puzzles and states in another order, in which the first blank ones show guesses."""
        moved = cells if self._cells is None else self._cells.argsort()[cells]
        first = self._net.arch.puzzle_tokens
        tokens = self._index(np.concatenate([np.arange(first), first + moved]))
        self.z_H, self.z_L, self._cells = self.z_H[tokens], self.z_L[tokens], cells
        order = self._index(cells)
        shown = fill(self._inputs[:, order], self._answers[:, order], guesses)
        self._x = self._embed(shown, self._puzzle if show_puzzle else None)

    def _index(self, order: np.ndarray) -> Tensor:
        return torch.from_numpy(order).to(self._inputs.device)
