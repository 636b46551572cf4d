"""A built data set as the engine uses it: originals for the device, a sampler for the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trm.backends.base import Backend
from trm.engine.state import Puzzles
from trm.engine.step import Originals
from trm.errors import UserError
from trm.study.schema import RunConfig


class Dataset:
    """One data set folder."""

    def __init__(self, folder: Path, config: RunConfig):
        self.folder = folder
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            meta = json.loads((folder / "train" / "dataset.json").read_text())
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} does not exist: build the data set first") from None
        self.identity = manifest["identity"]
        self.puzzles = Puzzles(
            meta["seq_len"], meta["vocab_size"], meta["num_puzzle_identifiers"], meta["ignore_label_id"]
        )
        self.summary: dict[str, Any] = {"name": folder.name, "identity": self.identity}
        self._arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def arrays(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if split not in self._arrays:

            def read(name):
                return np.load(self.folder / split / f"all__{name}.npy")

            self._arrays[split] = (
                read("inputs").astype(np.uint8),
                read("labels").astype(np.uint8),
                read("puzzle_identifiers").astype(np.int32),
            )
        return self._arrays[split]

    def count(self, split: str) -> int:
        return len(self.arrays(split)[0]) if (self.folder / split).is_dir() else 0

    def originals(self, split: str, backend: Backend) -> Originals:
        return Originals(*(backend.place(torch.from_numpy(a)) for a in self.arrays(split)))

    def sampler(self, config: RunConfig):
        n, s, v = self.count("train"), self.puzzles.seq_len, self.puzzles.vocab

        class S:
            def batch(self, step, first, count):
                rng = np.random.default_rng([config.seed, step])
                idx = rng.integers(0, n, config.training.batch_size)[first : first + count]
                return (
                    idx,
                    np.tile(np.arange(v, dtype=np.uint8), (count, 1)),
                    np.tile(np.arange(s, dtype=np.uint16), (count, 1)),
                )

        return S()
