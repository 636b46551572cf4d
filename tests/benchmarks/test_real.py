"""Real puzzles in stretches: the carried folder is all that the next call needs."""

import json
import random
import shutil
import sys

import pytest

from benchmarks import real
from trm.training.interrupt import EXIT_UNFINISHED
from trm.training.loop import Trainer

TINY = {
    "model": {
        "d_model": 16,
        "heads": 1,
        "h_cycles": 1,
        "l_cycles": 1,
        "halt_max_steps": 2,
        "puzzle_tokens": 1,
    },
    "data": {"train_puzzles": 6, "augmentations": 2, "validation_puzzles": 2, "test_puzzles": 3},
    "training": {"batch_size": 4, "steps": 12, "warmup_steps": 2},
}


def solved(draw, grid=None):
    """A random solved grid, by trying symbols cell after cell."""
    grid = grid or [0] * 81
    free = [i for i in range(81) if not grid[i]]
    if not free:
        return grid

    def candidates(i):
        row, column = divmod(i, 9)
        seen = {grid[9 * row + k] for k in range(9)} | {grid[9 * k + column] for k in range(9)}
        seen |= {grid[9 * (row // 3 * 3 + k // 3) + column // 3 * 3 + k % 3] for k in range(9)}
        return [symbol for symbol in range(1, 10) if symbol not in seen]

    cell = min(free, key=lambda i: len(candidates(i)))
    for symbol in draw.sample(options := candidates(cell), len(options)):
        grid[cell] = symbol
        if solved(draw, grid):
            return grid
    grid[cell] = 0
    return None


@pytest.fixture
def csv(tmp_path):
    """Twelve puzzles of different grids, some cells of the first row blank."""
    rows, draw = ["source,question,answer,rating"], random.Random(0)
    for blanks in range(2, 14):
        answer = "".join(map(str, solved(draw)))
        rows.append(f"made,{'.' * min(blanks, 9) + answer[min(blanks, 9) :]},{answer},1")
    path = tmp_path / "puzzles.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def call(monkeypatch, csv, work, *more):
    flat = {f"{section}.{key}": value for section, fields in TINY.items() for key, value in fields.items()}
    arguments = ["--csv", csv, "--work", work, "--scale", "laptop", "--set", json.dumps(flat), "--evals", 1]
    monkeypatch.setattr(sys, "argv", ["real", *map(str, arguments), "--threads", "1", *more])
    return real.main()


def test_goes_on_from_what_was_carried(csv, tmp_path, monkeypatch, capsys):
    end = Trainer._end_stretch

    def after_five(self, stop):
        if self.record.done == 5:
            self.started -= 60 * self.runtime.stop_after_minutes
        end(self, stop)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_end_stretch", after_five)
        assert call(monkeypatch, csv, tmp_path / "here") == EXIT_UNFINISHED
    assert not (tmp_path / "here/run/training.json").exists()
    (tmp_path / "there").mkdir()
    shutil.copytree(tmp_path / "here/carry", tmp_path / "there/carry")
    assert call(monkeypatch, csv, tmp_path / "there") == 0
    out = capsys.readouterr().out
    assert "step 5 in compact form" in out
    assert real.LAST_WORDS in out
    training = json.loads((tmp_path / "there/run/training.json").read_text())
    assert (training["steps"], training["resumes"]) == (12, 1)
    results = json.loads((tmp_path / "there/evaluation.json").read_text())["results"]
    assert {result["split"] for result in results} == {"test", "train"}


def test_too_little_time_is_said(csv, tmp_path, monkeypatch, capsys):
    assert call(monkeypatch, csv, tmp_path / "work", "--minutes", "0.5") == 2
    assert "is over before training starts" in capsys.readouterr().err


def test_the_gpu_scale_is_the_papers_recipe(csv):
    _, run, evaluation = real.planned(csv, "gpu", {})
    assert run.config.training.steps == 65_104
    assert run.config.training.batch_size == 768
    assert run.config.data.train_puzzles == 1000
    assert run.config.data.test_puzzles == 5000
    assert evaluation.confident
    assert max(evaluation.unroll) == 64
