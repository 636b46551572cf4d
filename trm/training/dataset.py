"""A data set for training: the originals live on the device, augmentation maps come from the host."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trm.backends.base import Backend
from trm.data.dataset import ARRAYS, PuzzleSet, load
from trm.data.files import MANIFEST, read_manifest
from trm.data.sampler import Sampler
from trm.io import sha256_file
from trm.model.act import Rows
from trm.study.fingerprint import digest
from trm.study.schema import RunConfig
from trm.study.tasks import Sizes, spec_of
from trm.tasks import task_of
from trm.tasks.base import Augmenter, HostAugmenter

NO_LABEL = -1  # equals no symbol, so that nothing is ignored


class Dataset:
    """A data set folder; splits are read and checked on first use."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self._splits: dict[str, PuzzleSet] = {}

    def split(self, name: str) -> PuzzleSet:
        """`train`, `validation` or `test`."""
        if name not in self._splits:
            self._splits[name] = load(self.folder, name)
        return self._splits[name]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest; empty: other tools built the data set."""
        return read_manifest(self.folder, "dataset") if (self.folder / MANIFEST).exists() else {}

    @cached_property
    def identity(self) -> str:
        """SHA-256 of what the data set depends on; without a manifest, of its training files."""
        names = [f"train/all__{name}.npy" for name in ARRAYS]
        return self.manifest.get("identity") or digest([sha256_file(self.folder / name) for name in names])

    @cached_property
    def identifiers(self) -> str:
        """SHA-256 of the file that says what each puzzle identifier stands for; empty: there is one, or no file."""
        path = self.folder / "identifiers.json"
        return sha256_file(path) if self.puzzles.num_ids > 1 and path.exists() else ""

    @cached_property
    def puzzles(self) -> Sizes:
        """Sizes that the model depends on."""
        meta = self.split("train").meta
        ignore = NO_LABEL if meta.ignore_label_id is None else meta.ignore_label_id
        return Sizes(meta.seq_len, meta.vocab_size, meta.num_puzzle_identifiers, ignore)

    @property
    def blank(self) -> int | None:
        """Symbol of a blank cell in a question; None: all cells count as blank."""
        return spec_of(self.split("train").meta.task).blank

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The data set's entry in training.json."""
        train = self.split("train")
        found = {
            "name": train.meta.name,
            "identity": self.identity,
            "train_puzzles": train.groups,
            "augmentations": train.meta.augmentations,
        }
        return found | ({"identifiers": self.identifiers} if self.identifiers else {})

    def has(self, name: str) -> bool:
        """Whether the split exists and is not empty."""
        return (self.folder / name).is_dir() and self.split(name).examples > 0

    def originals(self, name: str, backend: Backend, first: int | None = None) -> Rows:
        """A split's rows on the device; `first`: only the first groups."""
        puzzles = self.split(name) if first is None else self.split(name).first(first)
        identifiers = puzzles.puzzle_identifiers[puzzles.puzzle_of_example].astype(np.int32)
        arrays = (puzzles.inputs, puzzles.labels, identifiers)
        return Rows(*(backend.place(torch.from_numpy(np.ascontiguousarray(array))) for array in arrays))

    def sampler(self, config: RunConfig) -> tuple[Sampler, Augmenter | HostAugmenter]:
        """What samples the rows of each step, and what augments them."""
        train = self.split("train")
        sampler = Sampler.of(train, config.training.batch_size, config.seed)
        return sampler, task_of(train.meta.task).augmenter(train)
