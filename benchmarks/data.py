"""How fast the data are made, read, told apart, augmented and sampled; beside plain per-puzzle NumPy loops.

    python benchmarks/data.py [--json out.json] [--repeats 5] [--only augment] [--csv puzzles.csv ...]

Every line is measured in a process of its own (so the peak memory is its own) after one warm-up, and is the median of
the repeats. The baselines are the published descriptions, written as a plain loop over puzzles; where nothing is
published there is none. With --csv (official layout, 9x9) the classes of those files are counted too, and our rating is
compared with theirs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PUZZLES, COPIES = 1000, 1000
Work = tuple[Callable[[], object], int, str]
"""What is timed, how many rows it handles, what a row is."""


def nine(count: int = PUZZLES):
    """Random 9x9 puzzles (values) and their answers."""
    from trm.study.schema import DataConfig
    from trm.tasks.sudoku.pool import generated_pool

    pool = generated_pool(DataConfig(source="generate", pool=count))
    return pool.questions - 1, pool.answers - 1


def generate(folder: Path, scale: int) -> Work:
    """1: 9x9 puzzles with a rating of 20 or more."""
    from trm.study.schema import DataConfig
    from trm.tasks.sudoku.pool import generated_pool

    count = max(20, 600 // scale)
    return lambda: generated_pool(DataConfig(source="generate", min_rating=20, pool=count)), count, "puzzles"


def rate(folder: Path, scale: int) -> Work:
    """1: ratings of random minimal puzzles."""
    from trm.tasks.sudoku.geometry import Geometry
    from trm.tasks.sudoku.pool import solve

    questions, _ = nine(2000 // scale)
    questions = np.tile(questions, (20, 1))
    return lambda: solve(Geometry(3, 3), questions, 1), len(questions), "puzzles"


def write_csv(folder: Path, scale: int) -> tuple[Path, int]:
    """A file in the official layout."""
    from trm.tasks.sudoku.geometry import to_text

    questions, answers = nine()
    times = max(1, 200 // scale)
    rows = "".join(f"made,{to_text(q)},{to_text(a)},3\n" for q, a in zip(questions, answers))
    path = folder / "puzzles.csv"
    path.write_text("source,question,answer,rating\n" + rows * times)
    return path, len(questions) * times


def read(folder: Path, scale: int) -> Work:
    """2: reading and checking a CSV file, but for the search for second solutions."""
    from trm.data.csv_source import read_csv
    from trm.tasks.sudoku.geometry import Geometry
    from trm.tasks.sudoku.pool import value_check

    path, count = write_csv(folder, scale)
    return lambda: read_csv(path, 81, value_check(Geometry(3, 3), "puzzles.csv")), count, "puzzles"


def read_baseline(folder: Path, scale: int) -> Work:
    path, count = write_csv(folder, scale)

    def work():
        grids = []
        with open(path, newline="") as file:
            lines = csv.reader(file)
            next(lines)
            for _, question, answer, _ in lines:
                for text in (question.replace(".", "0"), answer):
                    grids.append(np.frombuffer(text.encode(), dtype=np.uint8).reshape(9, 9) - ord("0"))
        return np.stack(grids)

    return work, count, "puzzles"


def canonical(folder: Path, scale: int) -> Work:
    """3: canonical forms of solution grids and puzzles."""
    from trm.tasks.sudoku.canonical import canonical_keys

    questions, answers = (np.tile(grids, (max(1, 50 // scale), 1)) for grids in nine())
    return lambda: canonical_keys(questions, answers), len(questions), "puzzles"


def sudoku_set(folder: Path, scale: int) -> Path:
    """A data set of 1,000 puzzles x (1 + 1,000)."""
    from trm.study.schema import DataConfig
    from trm.tasks.build import build_dataset
    from trm.tasks.source import build_source

    config = DataConfig(source="generate", train_puzzles=PUZZLES, augmentations=COPIES // scale)
    config = config.model_copy(update={"validation_puzzles": 10, "test_puzzles": 10})
    build_source(config, folder / "source")
    build_dataset(config, folder / "source", folder / "set")
    return folder / "set"


def augment(folder: Path, scale: int) -> Work:
    """4: augmenting 1,000 x 1,001 puzzles and writing the reference's files, checksums included."""
    from trm.tasks.expand import expand

    path = sudoku_set(folder, scale)
    return lambda: expand(path, folder / "expanded"), PUZZLES * (COPIES // scale + 1), "puzzles"


def augment_baseline(folder: Path, scale: int) -> Work:
    """4: each copy draws digits, a transposition, bands, rows, stacks and columns; lists of grids are saved at the end.

    A tenth of the copies: its speed does not depend on their number, and its memory grows with it.
    """
    questions, answers = (grids.reshape(-1, 9, 9) for grids in nine())
    copies = COPIES // scale // 10

    def transform(generator):
        digits = np.concatenate([[0], generator.permutation(9) + 1])
        turned = generator.random() < 0.5
        rows = np.concatenate([3 * band + generator.permutation(3) for band in generator.permutation(3)])
        columns = np.concatenate([3 * stack + generator.permutation(3) for stack in generator.permutation(3)])

        def apply(grid):
            return digits[(grid.T if turned else grid)[rows][:, columns]]

        return apply

    def work():
        generator = np.random.default_rng(0)
        inputs, labels = [], []
        for question, answer in zip(questions, answers):
            inputs.append(question)
            labels.append(answer)
            for _ in range(copies):
                apply = transform(generator)
                inputs.append(apply(question))
                labels.append(apply(answer))
        for name, grids in (("inputs", inputs), ("labels", labels)):
            np.save(folder / f"{name}.npy", np.stack(grids).reshape(len(grids), 81) + 1)
        np.save(folder / "puzzle_indices.npy", np.arange(len(inputs) + 1))

    return work, PUZZLES * (copies + 1), "puzzles"


def fly(folder: Path, scale: int) -> Work:
    """4, 8: batches of 768 sampled and their maps made, as the trainer does each step."""
    from trm.data.dataset import load
    from trm.data.sampler import Sampler
    from trm.tasks import task_of

    train = load(sudoku_set(folder, scale), "train")
    sampler, augmenter = Sampler.of(train, 768, seed=0), task_of(train.meta.task).augmenter(train)

    def work():
        for step in range(100):
            batch = sampler.batch(step)
            augmenter.maps(batch.puzzles, batch.copies)

    return work, 100 * 768, "rows"


def maze(folder: Path, scale: int) -> Work:
    """5: mazes of 30x30 with a shortest path of 110 cells or more."""
    from trm.study.schema import DataConfig
    from trm.tasks.maze.maze import generated_pool

    config = DataConfig(task="maze", source="generate", pool=max(20, 300 // scale))
    return lambda: generated_pool(config), config.pool, "mazes"


def maze_set(folder: Path):
    from trm.study.schema import DataConfig
    from trm.tasks.build import build_dataset
    from trm.tasks.source import build_source

    config = DataConfig(task="maze", source="generate", train_puzzles=1000, augmentations=7, min_path=60)
    config = config.model_copy(update={"validation_puzzles": 1, "test_puzzles": 1})
    build_source(config, folder / "source")
    build_dataset(config, folder / "source", folder / "set")
    return folder / "set"


def turn(folder: Path, scale: int) -> Work:
    """5: the 8 forms of 30x30 mazes, written."""
    from trm.tasks.expand import expand

    path = maze_set(folder)
    return lambda: expand(path, folder / "expanded"), 8000, "mazes"


def turn_baseline(folder: Path, scale: int) -> Work:
    from trm.data.dataset import load

    train = load(maze_set(folder), "train")

    def forms(grid):
        return [np.rot90(grid, k) for k in range(4)] + [
            np.fliplr(grid),
            np.flipud(grid),
            grid.T,
            np.rot90(grid.T, 2),
        ]

    def work():
        inputs, labels = [], []
        for question, answer in zip(train.inputs, train.labels):
            inputs.extend(forms(question.reshape(30, 30)))
            labels.extend(forms(answer.reshape(30, 30)))
        for name, grids in (("inputs", inputs), ("labels", labels)):
            np.save(folder / f"{name}.npy", np.stack(grids).reshape(len(grids), -1))

    return work, 8000, "mazes"


def arc_set(folder: Path, copies: int) -> Path:
    """40 random ARC-like tasks with three pairs of grids of 10x12."""
    from trm.study.schema import DataConfig
    from trm.tasks.build import build_dataset
    from trm.tasks.source import build_source

    random = np.random.default_rng(0)

    def pair():
        return {key: random.integers(0, 10, (10, 12)).tolist() for key in ("input", "output")}

    tasks = {f"task{k}": {"train": [pair(), pair()], "test": [pair()]} for k in range(42)}
    (folder / "tasks.json").write_text(json.dumps(tasks))
    config = DataConfig(task="arc", source="json", files=(str(folder / "tasks.json"),), train_puzzles=40)
    config = config.model_copy(update={"validation_puzzles": 1, "test_puzzles": 1, "augmentations": copies})
    build_source(config, folder / "source")
    build_dataset(config, folder / "source", folder / "set")
    return folder / "set"


def arc(folder: Path, scale: int) -> Work:
    """6: augmented copies of ARC tasks, written."""
    from trm.tasks.expand import expand

    path = arc_set(folder, 200 // scale)
    return lambda: expand(path, folder / "expanded"), (40 * 3 + 4) * (200 // scale + 1), "examples"


def arc_baseline(folder: Path, scale: int) -> Work:
    from trm.data.dataset import load
    from trm.tasks.arc.arc import decode, encode

    train = load(arc_set(folder, 1), "train")
    grids = [[decode(tokens) for tokens in rows] for rows in (train.inputs, train.labels)]
    copies = 200 // scale

    def work():
        generator = np.random.default_rng(0)
        inputs, labels = [], []
        for question, answer in zip(*grids):
            for _ in range(copies + 1):
                colours = np.concatenate([[0], generator.permutation(9) + 1]).astype(np.uint8)
                number = generator.integers(8)
                down, right = generator.integers(0, 19, 2)
                for grid, out in ((question, inputs), (answer, labels)):
                    moved = np.rot90(colours[grid], number % 4)
                    moved = np.fliplr(moved) if number > 3 else moved
                    canvas = encode(moved).reshape(30, 30)
                    out.append(np.roll(canvas, (down, right), (0, 1)).reshape(-1))
        for name, rows in (("inputs", inputs), ("labels", labels)):
            np.save(folder / f"{name}.npy", np.stack(rows))

    return work, train.examples * (copies + 1), "examples"


LINES = {
    "generate": (generate, None, "1 generate 9x9, rating >= 20"),
    "rate": (rate, None, "1 rate minimal 9x9 puzzles"),
    "read": (read, read_baseline, "2 read a CSV file"),
    "canonical": (canonical, None, "3 canonical forms"),
    "augment": (augment, augment_baseline, "4 augment 1,000 x 1,001, write"),
    "fly": (fly, None, "4 sample and augment on the fly"),
    "maze": (maze, None, "5 generate 30x30 mazes, path >= 110"),
    "turn": (turn, turn_baseline, "5 write the 8 forms of mazes"),
    "arc": (arc, arc_baseline, "6 augment ARC tasks, write"),
}


def measure(name: str, baseline: bool, repeats: int, scale: int) -> dict[str, float | str]:
    """Median rows/s and the peak memory of this process."""
    with tempfile.TemporaryDirectory() as folder:
        work, rows, unit = LINES[name][1 if baseline else 0](Path(folder), scale)
        if not baseline:
            work()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak /= 2**20 if sys.platform == "darwin" else 2**10
    return {
        "seconds": statistics.median(seconds),
        "rows": rows,
        "unit": unit,
        "peak_mb": peak,
        "repeats": repeats,
    }


def apart(name: str, baseline: bool, repeats: int, scale: int) -> dict:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, "--repeats", str(repeats), "--scale", str(scale)]
    done = subprocess.run(command + ["--baseline"] * baseline, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def study(paths: list[Path]) -> list[dict]:
    """Equivalent puzzles and grids in CSV files, and how our rating agrees with theirs."""
    from scipy.stats import spearmanr

    from trm.data.csv_source import read_csv
    from trm.tasks.sudoku.classes import class_keys, number_rows, pairs
    from trm.tasks.sudoku.geometry import Geometry
    from trm.tasks.sudoku.pool import solve, value_check

    found, keys = [], []
    for path in paths:
        questions, answers, ratings = read_csv(path, 81, value_check(Geometry(3, 3), path.name), path.name)
        _, solutions, own = solve(Geometry(3, 3), questions)
        keys.append(class_keys(Geometry(3, 3), questions, answers))
        numbers = [number_rows(rows) for rows in keys[-1]]
        found.append(
            {
                "file": path.name,
                "puzzles": len(questions),
                "one_solution": int((solutions == 1).sum()),
                "puzzle_classes": int(numbers[0].max()) + 1,
                "equivalent_puzzle_pairs": pairs(numbers[0]),
                "grid_classes": int(numbers[1].max()) + 1,
                "equivalent_grid_pairs": pairs(numbers[1]),
                "rating_spearman": float(spearmanr(own, ratings)[0]),
                "rating_equal": float((own == ratings).mean()),
            }
        )
    if len(paths) > 1:
        numbers = [number_rows(np.concatenate(rows)) for rows in zip(*keys)]
        found.append(
            {
                "file": "all together",
                "puzzles": len(numbers[0]),
                "puzzle_classes": int(numbers[0].max()) + 1,
                "equivalent_puzzle_pairs": pairs(numbers[0]),
                "grid_classes": int(numbers[1].max()) + 1,
                "equivalent_grid_pairs": pairs(numbers[1]),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1, help="divide the work by this, for a quick look")
    parser.add_argument("--only", nargs="*", choices=LINES, default=list(LINES))
    parser.add_argument("--csv", nargs="*", type=Path, default=[], help="9x9 puzzles in the official layout")
    parser.add_argument("--measure", choices=LINES, help=argparse.SUPPRESS)
    parser.add_argument("--baseline", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.baseline, args.repeats, args.scale)))
        return
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    print(f"{machine}; medians of {args.repeats}\n")
    print(f"{'':<38}{'ours':>14} {'':<9}{'MB':>6}{'plain loop':>13}{'MB':>7}{'ratio':>8}")
    results = {}
    for name in args.only:
        ours = apart(name, False, args.repeats, args.scale)
        speed = ours["rows"] / ours["seconds"]
        line = f"{LINES[name][2]:<38}{speed:>14,.0f} {ours['unit'] + '/s':<11}{ours['peak_mb']:>4.0f}"
        results[name] = {"ours": ours | {"rows_per_second": speed}}
        if LINES[name][1]:
            plain = apart(name, True, args.repeats, args.scale)
            other = plain["rows"] / plain["seconds"]
            results[name] |= {"baseline": plain | {"rows_per_second": other}, "ratio": speed / other}
            line += f"{other:>13,.0f}{plain['peak_mb']:>7.0f}{speed / other:>8.1f}"
        print(line, flush=True)
    files = study(args.csv) if args.csv else []
    for entry in files:
        print("\n" + "\n".join(f"{key}: {value}" for key, value in entry.items()))
    if args.json:
        args.json.write_text(
            json.dumps({"machine": machine, "lines": results, "files": files}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
