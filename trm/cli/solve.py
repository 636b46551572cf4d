"""`python -m trm solve`: solve Sudoku with a trained model.

    python -m trm solve 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    python -m trm solve puzzles.csv --steps 64 --restarts 4 --out answers.csv
    python -m trm solve - < puzzles.txt > answers.csv
    python -m trm solve PUZZLE --model results/runs/NAME

A puzzle has one character per cell, row by row: 1-9 for clues, . or 0 for blanks. 81 characters are a 9x9 grid, 36 a
6x6 one. A file, or the standard input (-), has one puzzle a line, or is CSV with a column question and, to compare
with, perhaps a column answer. Answers are checked against the rules of Sudoku; the first one that satisfies them is
returned. An exact solver says whether a puzzle has no solution, one or several. Complete grids are not counted.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import sys
import time
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from trm.evaluation.solve import Solved
    from trm.tasks.sudoku.geometry import Geometry
    from trm.training.outputs import TrainedModel

EXACT = 9
"""Largest grids for the exact solver, in rows: larger ones may take it years."""
SOLUTIONS = {-1: "", 0: "none", 1: "one", 2: "several"}
NUMBERS = {
    -1: "",
    1: " It is the puzzle's only solution.",
    2: " The puzzle has several solutions; a proper Sudoku has only one.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "puzzle", help="the puzzle's characters, a file of puzzles, or - for the standard input"
    )
    parser.add_argument(
        "--model", type=Path, help="folder of a run, or a .safetensors file (default: those in models/)"
    )
    parser.add_argument(
        "--steps", type=int, help="maximum supervision steps (default: 4 times those of training)"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=4,
        help="number of starts, all but the first with the puzzle under a random symmetry (default: 4)",
    )
    parser.add_argument("--out", type=Path, help="CSV file for the answers to many puzzles")
    parser.add_argument("--svg", type=Path, help="also draw the steps of one puzzle as a moving picture")
    parser.add_argument(
        "--precision",
        choices=["float32", "training"],
        help="arithmetic: float32, which finds the same on every machine and in the page (default for one puzzle), "
        "or the training's, which may be several times faster (default for many)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")


class Row(NamedTuple):
    """A puzzle and its answer."""

    question: str
    answer: str
    """Valid if `solved`; otherwise the first model's best, or blank if the puzzle has no solution."""
    solved: bool = False
    step: int = 0
    restart: int = 0
    solutions: int = -1
    """By the exact solver, at most 2; -1: unknown."""
    model: str = ""
    """The model that gave the answer; empty: none was asked."""


class Rows(NamedTuple):
    """What was found for some puzzles."""

    rows: list[Row]
    history: list[np.ndarray]
    """The first puzzle's answer after each step."""
    geometry: Geometry
    seconds: float


def run(args: argparse.Namespace) -> int:
    """Solve; 0 when every puzzle is solved, 1 when not."""
    for name in ("steps", "restarts"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: give 1 or more")
    # before torch is loaded: on a busy machine, threads that spin take the time of those that they wait for
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    path = Path(args.puzzle)
    is_file = path.suffix in (".csv", ".gz") or (len(args.puzzle) < 200 and path.is_file())
    many = is_file or args.puzzle == "-"
    if many and args.svg:
        raise UserError("--svg draws one puzzle: give its characters")
    args.precision = args.precision or ("training" if many else "float32")
    if many:
        name, texts, wanted = _read(args.puzzle)
        places = [f"{name} line {line}: " for line, _ in texts]
        return _print_many(args, solve(args, [text for _, text in texts], places), wanted)
    from trm.tasks.sudoku.geometry import cells_of

    return _print_one(args, solve(args, [cells_of(args.puzzle)], [""]))


def solve(args: argparse.Namespace, texts: list[str], places: list[str]) -> Rows:
    """Ask the models, the largest first, for each puzzle that has a solution until one of them solves it.

    `texts`: puzzles of one size. `places`: where each was read, for errors.
    """
    from trm.evaluation.solve import geometry_of
    from trm.tasks.sudoku.geometry import parse_puzzles, to_text

    models = _models(args, len(texts[0]))
    geometry = geometry_of(models[0][1])
    questions = parse_puzzles(geometry, texts, places)
    started, solutions = time.monotonic(), _solutions(geometry, questions)
    blank = to_text(questions[0] * 0)
    rows = [Row(text, blank, solutions=number) for text, number in zip(texts, solutions, strict=True)]
    history: list[np.ndarray] = []
    left = [i for i, row in enumerate(rows) if row.solutions]
    for path, trained in models:
        if not left:
            break
        found = _search(args, path, trained, geometry, questions[left])
        for k, i in enumerate(left):
            solved = bool(found.right[k])
            if solved or not rows[i].model:
                answer, steps = to_text(found.answers[k]), (int(found.steps[k]), int(found.starts[k]))
                rows[i] = Row(texts[i], answer, solved, *steps, rows[i].solutions, path.name)
                history = found.history if i == 0 else history
        left = [i for i in left if not rows[i].solved]
    return Rows(rows, history, geometry, time.monotonic() - started)


def _models(args: argparse.Namespace, cells: int) -> list[tuple[Path, TrainedModel]]:
    from trm.evaluation.solve import find_models
    from trm.play import models_folder

    if args.model:
        if not args.model.exists():
            raise UserError(f"--model {args.model} does not exist: give the folder of a finished run")
        return find_models([args.model], cells)
    return find_models([models_folder()], cells)


def _search(
    args: argparse.Namespace, path: Path, trained: TrainedModel, geometry: Geometry, questions: np.ndarray
) -> Solved:
    from trm.backends.registry import open_backend
    from trm.evaluation.evaluate import inference_network
    from trm.evaluation.solve import DEEPER, in_float32, solve
    from trm.study.schema import EvaluationConfig

    if args.precision == "float32":
        trained = in_float32(trained)
    backend = open_backend("cpu", args.threads)
    net, _ = inference_network(trained, EvaluationConfig(), backend)
    steps = args.steps or DEEPER * trained.config.model.halt_max_steps
    return solve(net, geometry, questions, steps, args.restarts, f"solving with {path.name}")


def _solutions(geometry: Geometry, questions: np.ndarray) -> list[int]:
    """Number of solutions by the exact solver, up to 2. Grids so large that it may take forever: -1, or 0 if the clues
    contradict one another."""
    from trm.evaluation.solve import fault
    from trm.tasks.sudoku.pool import solve

    if geometry.side > EXACT:
        return [0 if fault(geometry, question, question) else -1 for question in questions]
    return [int(number) for number in solve(geometry, questions)[1]]


def _print_one(args: argparse.Namespace, found: Rows) -> int:
    from trm.evaluation.solve import fault, panels
    from trm.tasks.sudoku.geometry import parse_puzzles

    row, geometry = found.rows[0], found.geometry
    question, answer = parse_puzzles(geometry, [row.question, row.answer], ["", ""])
    if row.solutions == 0:
        if problem := fault(geometry, question, question):
            raise UserError(f"the puzzle's clues contradict one another: {problem}")
        print("The puzzle has no solution.")
        return 1
    width = shutil.get_terminal_size((100, 24)).columns
    print("\n".join(panels(geometry, question, found.history, width)))
    if args.svg:
        from trm.io import write_text
        from trm.play.animation import animation

        write_text(args.svg, animation(geometry, question, found.history))
    print(row.answer)
    if row.solved:
        where = f"step {row.step}" + (f" of restart {row.restart}" if row.restart else "")
        print(
            f"Solved at {where} by {row.model}: the answer keeps every rule and clue.{NUMBERS[row.solutions]}"
        )
        return 0
    wrong = fault(geometry, question, answer) or "cells are left blank"
    print(
        f"Not solved. The last answer breaks the rules: {wrong}. More steps or restarts may help "
        f"(--steps, --restarts).{NUMBERS[2] * (row.solutions == 2)}"
    )
    return 1


def _print_many(args: argparse.Namespace, found: Rows, wanted: list[str]) -> int:
    """`wanted`: the answers that the file gives, or none."""
    rows = found.rows
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("question", "answer", "solved", "step", "restart", "solutions"))
    for row in rows:
        numbers = int(row.solved), row.step, row.restart
        writer.writerow((row.question, row.answer, *numbers, SOLUTIONS[row.solutions]))
    if args.out:
        from trm.io import write_text

        write_text(args.out, table.getvalue())
    elif args.puzzle == "-":
        print(table.getvalue(), end="")
    solved = sum(row.solved for row in rows)
    without, several = (sum(row.solutions == number for row in rows) for number in (0, 2))
    same = sum(row.answer == answer for row, answer in zip(rows, wanted, strict=False))
    print(
        f"{solved:,} of {len(rows):,} puzzles solved ({100 * solved / len(rows):.1f} %) in {found.seconds:.1f} s"
        + f"; {without:,} have no solution" * bool(without)
        + f"; {several:,} have several solutions" * bool(several)
        + f"; {same:,} answers equal the file's" * bool(wanted),
        file=sys.stderr if args.puzzle == "-" and not args.out else sys.stdout,
    )
    return 0 if solved == len(rows) - without else 1


def _read(place: str) -> tuple[str, list[tuple[int, str]], list[str]]:
    """Name of the source, line and text of each puzzle, and the given answers (empty: none)."""
    import gzip

    from trm.data.csv_source import GZIP, columns_of, delimiter_of
    from trm.tasks.sudoku.geometry import cells_of

    try:
        if place == "-":
            # None: the caller has closed it
            place, content = "standard input", sys.stdin.buffer.read() if sys.stdin else b""
        else:
            content = Path(place).read_bytes()
            content = gzip.decompress(content) if content[:2] == GZIP else content
        lines = content.decode("utf-8-sig").splitlines()
        rows = list(csv.reader(lines, delimiter=delimiter_of(lines[0] if lines else "")))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    columns = columns_of(rows[0]) if rows else {}
    at, key = columns.get("question", 0), columns.get("answer")
    first = 1 if columns else 0
    numbered = [(line, row) for line, row in enumerate(rows[first:], first + 1) if any(row)]
    if not numbered:
        raise UserError(f"{place} has no puzzle: give one a line, or CSV with the header question,answer")
    for line, row in numbered:
        if len(row) <= max(at, key or 0):
            raise UserError(
                f"{place} line {line}: {len(row)} fields instead of {len(rows[0])}: correct or remove it"
            )
    texts = [(line, cells_of(row[at])) for line, row in numbered]
    return place, texts, [] if key is None else [row[key].strip() for _, row in numbered]
