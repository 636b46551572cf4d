"""Mazes as a task."""

import numpy as np

from trm.data import rng
from trm.data.dataset import Meta, PuzzleSet
from trm.data.official import official_files
from trm.data.pool import Pool
from trm.study.schema import DataConfig
from trm.tasks.base import Augmenter, Files, Task
from trm.tasks.grids import dihedral_cells, hashes
from trm.tasks.marginals import Symmetric
from trm.tasks.maze import maze
from trm.tasks.maze.spec import CHARACTERS, GOAL, START


class MazeAugmenter(Augmenter):
    """Copy k is symmetry k mod 8 of the square."""

    def __init__(self, meta: Meta):
        super().__init__(meta)
        self.turns = dihedral_cells(round(meta.seq_len**0.5))

    def maps(self, puzzles: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super().maps(puzzles, copies)[0], self.turns[np.asarray(copies) % 8]


class Maze(Task):
    """Square mazes, answered by a shortest path."""

    name = "maze"
    rating = "cells of the shortest path"

    def pool(self, config: DataConfig, files: Files) -> Pool:
        if config.source == "generate":
            return maze.generated_pool(config)
        if config.source == "official":
            return maze.read_pool(config, official_files(self.name), divided=True)
        return maze.read_pool(config, files)

    def symmetries(self, config: DataConfig, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cells = dihedral_cells(config.maze_size)[rng.bounded(rng.draw(keys, 0), 8)]
        return np.tile(np.arange(1 + len(CHARACTERS), dtype=np.uint8), (len(keys), 1)), cells

    def keys(self, config: DataConfig, questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
        return hashes(maze.canonical_mazes(config.maze_size, questions))

    def symmetric(self, meta: Meta) -> Symmetric:
        cells = dihedral_cells(round(meta.seq_len**0.5)).min(axis=0)
        return Symmetric("", (), (START, GOAL), cells, "starts and goals")

    def augmenter(self, train: PuzzleSet) -> Augmenter:
        return MazeAugmenter(train.meta)

    def lines(self, tokens: np.ndarray, meta: Meta) -> list[str]:
        side, symbols = round(len(tokens) ** 0.5), "?" + CHARACTERS
        return ["".join(symbols[token] for token in row) for row in tokens.reshape(side, side).tolist()]

    def guesses(self, config: DataConfig, inputs: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
        exact = (maze.fill_dead_ends(inputs) == labels).all(1).mean()
        return {"uniform": 0.5, "rules": None, "exact": float(exact)}  # a cell is on the path or not


TASK = Maze()
