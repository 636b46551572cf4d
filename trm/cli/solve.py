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
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trm.errors import UserError

if TYPE_CHECKING:
    from trm.evaluation.solve import Rows

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
    parser.add_argument(
        "--out", type=Path, help="CSV file for the answers to many puzzles (default: printed)"
    )
    parser.add_argument("--svg", type=Path, help="also draw the steps of one puzzle as a moving picture")
    parser.add_argument(
        "--precision",
        choices=["float32", "training"],
        help="arithmetic: float32, which finds the same on every machine and in the page (default for one puzzle), "
        "or the training's, which may be several times faster (default for many)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")


def run(args: argparse.Namespace) -> int:
    """Solve; 0 when every puzzle is solved, 1 when not, 130 after Ctrl-C."""
    for name in ("steps", "restarts"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: give 1 or more")
    # before torch is loaded: on a busy machine, threads that spin take the time of those that they wait for
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    path = Path(args.puzzle)
    # a misspelt name is no puzzle of the wrong length; a long puzzle is no name that a system can look up
    named = re.search(rf"{os.sep}|([a-z])(?!\1)[a-z]", args.puzzle)
    many = args.puzzle == "-" or named or (len(args.puzzle) < 200 and path.exists())
    if many and args.svg:
        raise UserError("--svg draws one puzzle: give its characters")
    if args.out and not many:
        raise UserError("--out is for a file of puzzles: the answer to one puzzle is printed")
    from trm.tasks.sudoku.geometry import cells_of

    wanted: list[str] = []
    if many:
        name, numbered, wanted = _read(args.puzzle)
        texts, places = [text for _, text in numbered], [f"{name} line {line}: " for line, _ in numbered]
    else:
        texts, places = [cells_of(args.puzzle)], [""]
    from trm.evaluation.solve import find_models, solve_texts
    from trm.play import models_folder

    if args.model and not args.model.exists():
        raise UserError(f"--model {args.model} does not exist: give the folder of a finished run")
    models = find_models([args.model or models_folder()], len(texts[0]), places[0])
    precision = args.precision or ("training" if many else "float32")
    found = solve_texts(texts, places, models, args.steps, args.restarts, precision, args.threads)
    if found.stopped and not many:
        raise KeyboardInterrupt
    return _print_many(args, found, wanted) if many else _print_one(args, found)


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
    if row.complete:
        print("The grid is complete and keeps every rule, so there is nothing to solve.")
        return 0
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
        numbers = ("", "", "") if row.complete else (int(row.solved), row.step, row.restart)
        writer.writerow((row.question, row.answer, *numbers, SOLUTIONS[row.solutions]))
    if args.out:
        from trm.io import write_text

        write_text(args.out, table.getvalue())
    else:
        print(table.getvalue(), end="")
    asked = [row for row in rows if not row.complete]
    solved, complete = sum(row.solved for row in asked), len(rows) - len(asked)
    without, several = (sum(row.solutions == number for row in asked) for number in (0, 2))
    same = sum(row.answer == answer for row, answer in zip(rows, wanted, strict=False) if not row.complete)
    print(
        f"{solved:,} of {len(asked):,} puzzles solved ({100 * solved / max(1, len(asked)):.1f} %) in "
        f"{found.seconds:.1f} s"
        + f"; {complete:,} are complete grids, which are not counted" * bool(complete)
        + f"; {without:,} have no solution" * bool(without)
        + f"; {several:,} have several solutions" * bool(several)
        + f"; the file gives the same answer to {same:,}" * bool(wanted)
        + "; stopped by Ctrl-C, before the others were tried to the end" * found.stopped,
        file=sys.stdout if args.out else sys.stderr,
    )
    return 130 if found.stopped else 0 if solved == len(asked) - without else 1


def _read(place: str) -> tuple[str, list[tuple[int, str]], list[str]]:
    """Name of the source, line and text of each puzzle, and the given answers (empty: none)."""
    import gzip

    from trm.data.csv_source import GZIP, columns_of, delimiter_of, refuse_utf16
    from trm.tasks.sudoku.geometry import cells_of

    try:
        if place == "-":
            # None: the caller has closed it
            place, content = "standard input", sys.stdin.buffer.read() if sys.stdin else b""
        else:
            content = Path(place).read_bytes()
            content = gzip.decompress(content) if content[:2] == GZIP else content
        refuse_utf16(content, place)
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
