"""Batches of an evaluation that was stopped: kept, and nothing else is read in their place."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from trm.errors import UserError
from trm.evaluation.parts import Parts
from trm.storage.local import LocalStore
from trm.training.interchange import read_state

BATCHES = [slice(0, 2), slice(2, 4)]


class Command:
    """What a pickle may hold: a program that runs when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def one(part: slice) -> dict[str, torch.Tensor]:
    return {"rows": torch.arange(part.start, part.stop), "+sum": torch.tensor(part.start)}


def parts(folder: Path) -> Parts:
    found = Parts(LocalStore(folder))
    found.open("identity")
    return found


@pytest.mark.parametrize(("batches", "computed"), [(BATCHES, 0), ([slice(0, 3), slice(3, 4)], 2)])
def test_batches_of_an_earlier_process_are_computed_again_only_in_another_size(tmp_path, batches, computed):
    first = parts(tmp_path)
    whole = first.compute("work", BATCHES, one)
    first.save()
    again = parts(tmp_path)
    assert again.compute("work", batches, one)["rows"].tolist() == whole["rows"].tolist() == [0, 1, 2, 3]
    assert (first.done, again.done) == (2, computed)


def damaged(folder: Path) -> bytes:
    return next(folder.glob("part-*")).read_bytes()[:-40]


def program(folder: Path) -> bytes:
    return pickle.dumps(Command(folder.parent / "made"), protocol=2)  # as torch writes


@pytest.mark.parametrize("content", [damaged, program])
def test_a_damaged_part_is_computed_again_and_a_program_never_runs(tmp_path, caplog, content):
    first = parts(tmp_path / "kept")
    first.compute("work", BATCHES, one)
    first.save()
    (path,) = (tmp_path / "kept").glob("part-*")
    path.write_bytes(content(tmp_path / "kept"))
    again = parts(tmp_path / "kept")
    again.compute("work", BATCHES, one)
    assert again.done == 2
    assert "part-00000.pt cannot be read" in caplog.text
    assert not (tmp_path / "made").exists()


def test_a_program_in_a_checkpoint_of_others_never_runs(tmp_path):
    (tmp_path / "model.pt").write_bytes(program(tmp_path / "kept"))
    with pytest.raises(UserError, match=r"as a state dict \(it holds more than tensors"):
        read_state(tmp_path / "model.pt")
    assert not (tmp_path / "made").exists()
