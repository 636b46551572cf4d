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
from typing import TYPE_CHECKING, Any

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
    return _solve_many(args) if many else _solve_one(args)


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


def _solve_one(args: argparse.Namespace) -> int:
    from trm.tasks.sudoku.geometry import cells_of, parse_puzzles, to_text

    text = cells_of(args.puzzle)
    models = _models(args, len(text))
    from trm.evaluation.solve import fault, geometry_of, panels

    geometry = geometry_of(models[0][1])
    (question,) = parse_puzzles(geometry, [text])
    if problem := fault(geometry, question, question):
        raise UserError(f"the puzzle's clues contradict one another: {problem}")
    if question.all():
        print("The grid is complete and keeps every rule, so there is nothing to solve.")
        return 0
    solutions = int(_solutions(geometry, question[None])[0])
    if solutions == 0:
        print("The puzzle has no solution.")
        return 1
    for path, trained in models:
        geometry = geometry_of(trained)
        found, name = _search(args, path, trained, geometry, question[None]), path.name
        if found.right[0]:
            break
    width = shutil.get_terminal_size((100, 24)).columns
    print("\n".join(panels(geometry, question, found.history, width)))
    if args.svg:
        from trm.io import write_text
        from trm.play.animation import animation

        write_text(args.svg, animation(geometry, question, found.history))
    answer = to_text(found.answers[0])
    where = f"step {found.steps[0]}" + (f" of restart {found.starts[0]}" if found.starts[0] else "")
    print(answer)
    if found.right[0]:
        print(f"Solved at {where} by {name}: the answer keeps every rule and clue.{NUMBERS[solutions]}")
        return 0
    wrong = fault(geometry, question, found.answers[0]) or "cells are left blank"
    print(
        f"Not solved. The last answer breaks the rules: {wrong}. More steps or restarts may help "
        f"(--steps, --restarts).{NUMBERS[2] * (solutions == 2)}"
    )
    return 1


def _solutions(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """Number of solutions by the exact solver, up to 2; -1 for grids so large that it may take forever."""
    import numpy as np

    from trm.tasks.sudoku.pool import solve

    if geometry.side > EXACT:
        return np.full(len(questions), -1)
    return solve(geometry, questions)[1]


def _solve_many(args: argparse.Namespace) -> int:
    import numpy as np

    from trm.evaluation.solve import geometry_of, keeps_rules
    from trm.tasks.sudoku.geometry import parse_puzzles, to_text

    name, texts, wanted = _read(args.puzzle)
    models = _models(args, len(texts[0][1]))
    geometry = geometry_of(models[0][1])
    places = [f"{name} line {line}: " for line, _ in texts]
    questions = parse_puzzles(geometry, [text for _, text in texts], places)
    started, solutions = time.monotonic(), _solutions(geometry, questions)
    complete = questions.all(axis=1) & keeps_rules(geometry, questions, questions)
    asked = ~complete
    left = np.flatnonzero(asked & (solutions != 0))
    total: Any = None
    for path, trained in models:
        found = _search(args, path, trained, geometry, questions[left])
        if total is None:
            total = [np.zeros((len(questions), *part.shape[1:]), part.dtype) for part in found[:5]]
            chosen = np.ones(len(left), dtype=bool)
        else:
            chosen = found.right
        for mine, its in zip(total, found[:5], strict=True):
            mine[left[chosen]] = its[chosen]
        left = np.flatnonzero(asked & (solutions != 0) & ~total[4])
    answers, _, steps, starts, right = total
    answers[complete] = questions[complete]
    grids = list(map(to_text, answers))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("question", "answer", "solved", "step", "restart", "solutions"))
    for (_, text), grid, given, *rest in zip(
        texts, grids, complete, right, steps, starts, solutions, strict=True
    ):
        how = ("", "", "") if given else (int(rest[0]), *rest[1:3])
        writer.writerow((text, grid, *how, SOLUTIONS[int(rest[3])]))
    if args.out:
        from trm.io import write_text

        write_text(args.out, table.getvalue())
    elif args.puzzle == "-":
        print(table.getvalue(), end="")
    without, several = int((solutions == 0).sum()), int((solutions == 2).sum())
    same = sum(map(str.__eq__, compress(grids, asked), compress(wanted, asked)))
    count, all_asked = int(right.sum()), int(asked.sum())
    print(
        f"{count:,} of {all_asked:,} puzzles solved ({100 * count / max(1, all_asked):.1f} %) in "
        f"{time.monotonic() - started:.1f} s"
        + f"; {int(complete.sum()):,} are complete grids, which are not counted" * bool(complete.any())
        + f"; {without:,} have no solution" * bool(without)
        + f"; {several:,} have several solutions" * bool(several)
        + f"; {same:,} answers equal the file's" * bool(wanted),
        file=sys.stderr if args.puzzle == "-" and not args.out else sys.stdout,
    )
    return 0 if right[asked & (solutions != 0)].all() else 1


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
