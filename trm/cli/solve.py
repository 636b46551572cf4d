"""`python -m trm solve`: solve Sudoku with a trained model.

    python -m trm solve 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    python -m trm solve puzzles.csv --steps 64 --restarts 4 --out answers.csv
    python -m trm solve PUZZLE --model results/runs/NAME

A puzzle has one character per cell, row by row: 1-9 for clues, . or 0 for blanks. 81 characters are a 9x9 grid, 36 a
6x6 one. A CSV file has the columns question and answer. Answers are checked against the rules of Sudoku; the first
one that satisfies them is returned.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from trm.evaluation.solve import Solved
    from trm.tasks.sudoku.geometry import Geometry
    from trm.training.outputs import TrainedModel

DEEPER = 4
"""Steps by default: this many times as many as in training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("puzzle", help="the puzzle's characters, or a CSV file of puzzles")
    parser.add_argument(
        "--model", type=Path, help="folder of a run, or a .safetensors file (default: those in models/)"
    )
    parser.add_argument(
        "--steps", type=int, help=f"maximum supervision steps (default: {DEEPER} times those of training)"
    )
    parser.add_argument(
        "--restarts", type=int, default=4, help="number of starts, all but the first with noise (default: 4)"
    )
    parser.add_argument(
        "--noise", type=float, default=0.3, help="standard deviation of that noise (default: 0.3)"
    )
    parser.add_argument("--out", type=Path, help="CSV file for the answers to a CSV file")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")


def run(args: argparse.Namespace) -> int:
    """Solve; 0 when every puzzle is solved, 1 when not."""
    for name in ("steps", "restarts"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: give 1 or more")
    if not args.noise >= 0 or math.isinf(args.noise):
        raise UserError(f"--noise {args.noise}: give a number of 0 or more")
    path = Path(args.puzzle)
    is_file = path.suffix in (".csv", ".gz") or (len(args.puzzle) < 200 and path.is_file())
    return _solve_file(args, path) if is_file else _solve_one(args)


def _models(args: argparse.Namespace, cells: int) -> list[tuple[Path, TrainedModel]]:
    from trm.evaluation.solve import find_models

    if args.model:
        if not args.model.exists():
            raise UserError(f"--model {args.model} does not exist: give the folder of a finished run")
        return find_models([args.model], cells)
    shipped = [Path("models"), Path(__file__).parents[2] / "models"]
    return find_models([place for place in shipped if place.is_dir()][:1] or shipped[:1], cells)


def _search(
    args: argparse.Namespace, trained: TrainedModel, geometry: Geometry, questions: np.ndarray
) -> Solved:
    from trm.backends.registry import open_backend
    from trm.evaluation.evaluate import inference_network
    from trm.evaluation.solve import solve
    from trm.study.schema import EvaluationConfig

    backend = open_backend("cpu", args.threads)
    net, _ = inference_network(trained, EvaluationConfig(), backend)
    steps = args.steps or DEEPER * trained.config.model.halt_max_steps
    return solve(net, geometry, questions, steps, args.restarts, args.noise)


def _solve_one(args: argparse.Namespace) -> int:
    text = "".join(args.puzzle.split())
    models = _models(args, len(text))
    from trm.evaluation.solve import fault, geometry_of, panels, parse_puzzle
    from trm.tasks.sudoku.geometry import to_text

    for path, trained in models:
        geometry = geometry_of(trained)
        question = parse_puzzle(text, geometry)
        found, name = _search(args, trained, geometry, question[None]), path.name
        if found.right[0]:
            break
    width = shutil.get_terminal_size((100, 24)).columns
    print("\n".join(panels(geometry, question, found.history, width)))
    answer = to_text(found.answers[0])
    sure = 100 / (1 + math.exp(-float(found.halt_logits[0])))
    where = f"step {found.steps[0]}" + (f" of restart {found.starts[0]}" if found.starts[0] else "")
    print(answer)
    if found.right[0]:
        doubt = "" if sure >= 50 else f"; the model itself is not sure of it ({sure:.0f} %)"
        print(f"Solved at {where} by {name}: the answer keeps every rule and clue{doubt}.")
        return 0
    wrong = fault(geometry, question, found.answers[0]) or "cells are left blank"
    belief = "The model is not sure of this answer" if sure < 50 else "The model believes this answer"
    print(
        f"Not solved. {belief} ({sure:.0f} %), and it breaks the rules: {wrong}. More steps or restarts may help "
        f"(--steps, --restarts)."
    )
    return 1


def _solve_file(args: argparse.Namespace, path: Path) -> int:
    import numpy as np

    from trm.data.csv_source import read_csv
    from trm.evaluation.solve import geometry_of
    from trm.tasks.sudoku.geometry import to_text
    from trm.tasks.sudoku.pool import check_values

    cells = _cells_of_first_puzzle(path)
    models = _models(args, cells)
    geometry = geometry_of(models[0][1])
    questions, answers, _ = read_csv(path, cells, partial(check_values, geometry, str(path)))
    started, left = time.monotonic(), np.arange(len(questions))
    total: Any = None
    for _, trained in models:
        found = _search(args, trained, geometry, questions[left])
        if total is None:
            total = found
        else:
            for mine, its in zip(total[:5], found[:5], strict=True):
                mine[left[found.right]] = its[found.right]
        left = np.flatnonzero(~total.right)
    same = (total.answers == answers).all(axis=1)
    if args.out:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("question", "answer", "solved", "halt_logit", "step", "restart"))
        for row in range(len(questions)):
            texts = to_text(questions[row]), to_text(total.answers[row])
            logit = f"{total.halt_logits[row]:.3f}"
            writer.writerow((*texts, int(total.right[row]), logit, total.steps[row], total.starts[row]))
        from trm.io import write_text

        write_text(args.out, table.getvalue())
    count, believed = len(questions), int((total.halt_logits[~total.right] > 0).sum())
    print(
        f"{int(total.right.sum()):,} of {count:,} puzzles solved ({100 * total.right.mean():.1f} %) in "
        f"{time.monotonic() - started:.1f} s; {int(same.sum()):,} answers equal the file's; "
        f"{believed:,} wrong answers that the model believes in"
    )
    return 0 if total.right.all() else 1


def _cells_of_first_puzzle(path: Path) -> int:
    """Length of the first question; the reader checks the others by it."""
    import gzip

    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8-sig") as file:
            first = next(csv.DictReader(file), None)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not first or not first.get("question"):
        raise UserError(f"{path} has no puzzle: give a CSV file with the header question,answer")
    return len(first["question"])
