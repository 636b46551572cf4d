"""Mazes: long shortest paths, the official character form, what is refused."""

import numpy as np
import pytest

from tests.data.conftest import build, maze_config
from trm.data.dataset import load
from trm.data.pool import FREE, TEST, TRAIN, load_pool
from trm.errors import UserError
from trm.tasks import task_of
from trm.tasks.build import build_source
from trm.tasks.maze.kernels import distances
from trm.tasks.maze.maze import canonical_mazes, examine, fill_dead_ends, generated_pool
from trm.tasks.maze.spec import CHARACTERS, WALL

SMALL = maze_config(pool=40)


def text(tokens: np.ndarray) -> str:
    return "".join(CHARACTERS[token - 1] for token in tokens.tolist())


@pytest.mark.parametrize("unique", [False, True])
def test_generated_mazes(unique):
    pool = generated_pool(SMALL.model_copy(update={"unique_path": unique}))
    faults, lengths, single = examine(8, pool.questions, pool.answers)
    assert pool.puzzles == 40
    assert not faults.any()
    assert lengths.min() >= 14
    assert (pool.ratings == lengths).all()
    assert ((pool.answers == 5).sum(axis=1) == lengths - 2).all()
    assert pool.report["one_shortest_path"] == single.sum()
    assert single.all() or not unique
    assert len(np.unique(canonical_mazes(8, pool.questions), axis=0)) == 40


@pytest.mark.parametrize("walls", ["depth_first", "uniform"])
def test_perfect_mazes_are_trees_and_no_walls_are_in_two_splits(tmp_path, walls):
    sizes = {"pool": 300, "train_puzzles": 200, "validation_puzzles": 50, "test_puzzles": 50}
    folder = build(maze_config(maze_size=9, min_path=11, walls=walls, **sizes), tmp_path)
    pool, _ = load_pool(tmp_path / "source")
    faults, lengths, single = examine(9, pool.questions, pool.answers)
    assert not faults.any()
    assert single.all()
    assert lengths.min() >= 11
    assert len(set(lengths.tolist())) > 8
    for maze in pool.questions:
        reached = distances(maze, 9, 0, *np.empty((2, 81), np.int64), np.empty(5, np.int64))
        grid = maze.reshape(9, 9) != WALL
        doors = (grid[1:] & grid[:-1]).sum() + (grid[:, 1:] & grid[:, :-1]).sum()
        assert reached == grid.sum() == doors + 1  # connected, without a cycle
        assert grid[::2, ::2].all()
    seen: set[bytes] = set()
    for split in ("train", "validation", "test"):
        inputs = load(folder, split).inputs
        forms = canonical_mazes(9, np.where(inputs == WALL, WALL, 2).astype(np.uint8))
        rows = {form.tobytes() for form in forms}
        assert not rows & seen
        seen |= rows
    assert len(seen) == 300


def test_every_small_perfect_maze_is_found_and_more_are_refused():
    config = maze_config(maze_size=5, min_path=5, walls="uniform", pool=28)
    pool = generated_pool(config)  # 192 trees of 3x3 rooms: 28 up to symmetry
    assert pool.puzzles == 28
    with pytest.raises(UserError, match="only 28 of .* perfect 5x5 mazes had different walls, not 29"):
        generated_pool(config.model_copy(update={"pool": 29}))


def tokens(*lines: str) -> np.ndarray:
    return np.array([[CHARACTERS.index(letter) + 1 for letter in "".join(lines)]], dtype=np.uint8)


def test_filling_dead_ends_finds_the_only_way_and_keeps_both_of_two():
    alone = tokens("S #  ", "# # #", "#   #", "## ##", "## G#")
    assert text(fill_dead_ends(alone)[0]) == "".join(["So#  ", "#o# #", "#oo #", "##o##", "##oG#"])
    ring = tokens("S   #", " ## #", " ## #", "    #", "#  G#")
    assert (fill_dead_ends(ring) == 5).sum() > examine(5, ring, ring)[1].item()


def test_a_hard_30x30_maze():
    pool = generated_pool(maze_config(maze_size=30, min_path=110, pool=2))
    assert pool.ratings.min() >= 110
    again = generated_pool(maze_config(maze_size=30, min_path=110, pool=1))
    assert (again.questions == pool.questions[:1]).all()


def test_too_long_a_path_is_said():
    with pytest.raises(UserError, match="8x8 mazes had a shortest path of 60 cells"):
        generated_pool(maze_config(pool=1, min_path=60))


def write(path, rows):
    path.write_text("source,question,answer,rating\n" + "".join(f"made,{q},{a},1\n" for q, a in rows))


def test_official_form_is_read(tmp_path, monkeypatch):
    made = generated_pool(SMALL)
    rows = [(text(q), text(a)) for q, a in zip(made.questions, made.answers)]
    write(tmp_path / "a.csv", rows)
    config = maze_config(source="csv", files=(str(tmp_path / "a.csv"),))
    pool = build_source(config, tmp_path / "out")
    assert (canonical_mazes(8, pool.questions) == canonical_mazes(8, made.questions)).all()
    same = (pool.questions == made.questions).all(axis=1)
    assert 0 < same.sum() < len(same)  # one of the 8 symmetries is drawn
    assert not examine(8, pool.questions, pool.answers)[0].any()
    assert (pool.ratings == made.ratings).all()
    turned = (rows[0][0][::-1], rows[0][1][::-1])
    write(tmp_path / "b.csv", [turned])  # which the official files keep as a test
    files = [(name, tmp_path / name) for name in ("a.csv", "b.csv")]
    monkeypatch.setattr("trm.tasks.maze.task.official_files", lambda task: files)
    for source, part in (("csv", [FREE] * 40), ("official", [TRAIN] * 39 + [TEST])):
        pool = task_of("maze").pool(config.model_copy(update={"source": source}), files)
        assert pool.part.tolist() == part
        assert pool.report["equivalent_removed"] == 1


@pytest.mark.parametrize(
    ("question", "answer", "words"),
    [
        ("S" + " " * 24, "S" + " " * 24, "0 G"),
        ("SSG" + " " * 22, "SSG" + " " * 22, "2 S"),
        ("S G" + "x" + " " * 21, "S G" + "x" + " " * 21, "'x' at character 4"),
        ("SoG" + " " * 22, "SoG" + " " * 22, "the question shows a path"),
        ("S G" + " " * 22, "SoG" + "#" + " " * 21, "show different mazes"),
        ("S G" + " " * 22, "S G" + " " * 22, "not a shortest path"),
        ("S G" + " " * 22, "S G" + "oooooo" + " " * 16, "not a shortest path"),
        ("S G" + " " * 22, "S G" + "o" + " " * 21, "path is broken"),
        ("S#G  " + "###  " + " " * 15, "S#G  " + "###  " + " " * 15, "there is no path from S to G"),
        ("S G", "SoG", "3 characters instead of 25"),
    ],
)
def test_malformed_mazes_are_refused_by_line(tmp_path, question, answer, words):
    write(tmp_path / "a.csv", [("S G" + " " * 22, "SoG" + " " * 22), (question, answer)])
    config = maze_config(source="csv", maze_size=5, files=(str(tmp_path / "a.csv"),))
    with pytest.raises(UserError, match=r"a\.csv line 3: ") as caught:
        build_source(config, tmp_path / "out")
    assert words in str(caught.value)
