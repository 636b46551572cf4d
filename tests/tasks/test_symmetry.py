"""Puzzles from files: each under one random symmetry, so that a collection's own form teaches a model nothing."""

import numpy as np
import pytest

from tests.data.conftest import build, csv_config
from trm.data.dataset import Meta, load
from trm.tasks import task_of
from trm.tasks.build import build_source
from trm.tasks.inspect import describe
from trm.tasks.marginals import describe as marginals
from trm.tasks.sudoku.classes import FOUR, class_keys, classes_4x4
from trm.tasks.sudoku.geometry import Geometry, to_text
from trm.tasks.sudoku.pool import solve


@pytest.fixture(scope="module")
def canonical(tmp_path_factory):
    """A CSV file of 4x4 puzzles in canonical form, with its questions."""
    path = tmp_path_factory.mktemp("file") / "canonical.csv"
    questions, answers = classes_4x4(6, 7)
    rows = [f"{to_text(q)},{to_text(a)}" for q, a in zip(questions, answers)]
    path.write_text("\n".join(["question,answer", *rows]))
    return path, questions


def test_a_collection_loses_its_form_and_nothing_else(tmp_path, canonical):
    path, questions = canonical
    pool = build_source(csv_config(path), tmp_path / "pool")
    moved, answers = pool.questions - 1, pool.answers - 1
    assert (class_keys(FOUR, moved, answers)[0] == class_keys(FOUR, questions, answers)[0]).all()
    found, solutions, _ = solve(Geometry(2, 2), moved)
    assert (solutions == 1).all()
    assert (found == answers).all()  # question and answer are under the same symmetry
    assert (moved != questions).any(axis=1).mean() > 0.9
    assert (build_source(csv_config(path), tmp_path / "again").questions == pool.questions).all()
    as_published = build_source(csv_config(path, symmetry="none"), tmp_path / "published")
    assert (as_published.questions - 1 == questions).all()
    assert (build_source(csv_config(path, seed=1), tmp_path / "other").questions != pool.questions).any()


def test_what_is_read_is_uniform_and_what_is_not_is_said(tmp_path, canonical):
    path, questions = canonical
    build(csv_config(path), tmp_path)
    for folder in ("source", "set"):
        text = describe(tmp_path / folder)
        assert "digits, %: 2" in text
        assert "clues by row, %: 2" in text
        assert "WARNING" not in text
    meta = load(tmp_path / "set", "train").meta
    kind = task_of("sudoku").symmetric(meta)
    assert "clues: mean 6" in (before := "\n".join(marginals(questions + 1, np.arange(len(questions)), kind)))
    assert "not uniform" in before
    # frequent digits alone, and frequent cells alone
    rng = np.random.default_rng(0)
    given = np.where(rng.random((4000, 16)) < 0.5, rng.integers(2, 6, (4000, 16)), 1)
    for odd, token in ((given, 2), (given[:, ::-1], 5)):
        assert "WARNING" not in "".join(marginals(odd, np.arange(4000), kind))
        odd = odd.copy()
        odd[:, 3] = np.where(rng.random(4000) < 0.2, token, odd[:, 3])
        assert "WARNING" in "".join(marginals(odd, np.arange(4000), kind))
    # each digit as often as any other, and each cell, but a form in which one row holds 1, 2, 3, 4
    ordered = given.copy()
    ordered[:, :4] = np.where(given[:, :4] > 1, [2, 3, 4, 5], 1)
    assert "WARNING" in "".join(marginals(ordered, np.arange(4000), kind))


@pytest.mark.parametrize(
    ("task", "side", "vocab", "numbers", "words"),
    [
        ("maze", 5, 6, np.arange(200), "starts and goals by row"),
        ("arc", 4, 12, np.arange(200) // 2, "colours, %: 100.0 0.0"),
    ],
)
def test_mazes_and_colours_are_compared_too(task, side, vocab, numbers, words):
    grids = np.full((200, side**2), 2 if task == "maze" else 3, dtype=np.uint8)
    if task == "maze":
        grids[:, 0], grids[:, 24] = 3, 4  # always from the top left to the bottom right
    kind = task_of(task).symmetric(Meta(task, side**2, vocab, 1))
    text = "\n".join(marginals(grids, numbers, kind))
    assert words in text
    assert "not uniform" in text
