"""Solve Sudoku with a trained model: supervision steps until an answer is valid, in one or more restarts.

Shapes: B puzzles, S cells.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trm.backends.registry import open_backend
from trm.data.dataset import Meta
from trm.data.progress import Progress
from trm.errors import UserError
from trm.evaluation.evaluate import inference_network
from trm.evaluation.passes import Pass
from trm.evaluation.symmetry import random_views, restart_symmetries
from trm.model.inference import InferenceNetwork
from trm.study.records import WEIGHTS
from trm.study.schema import DataConfig, EvaluationConfig
from trm.study.tasks import spec_of
from trm.tasks.sudoku.geometry import SYMBOLS, Geometry, broken_rule, parse_puzzles, to_text
from trm.tasks.sudoku.task import TASK
from trm.training.outputs import TrainedModel, load_weights

DEEPER = 4
"""Steps by default: this many times as many as in training."""
EXACT = 9
"""Largest grids for the exact solver, in rows: larger ones may take it years."""
VIEW_GUESSES = 2
"""Blank cells that every second view sees filled with the last answer (lab/2026-11.md)."""


def view_settings(h_cycles: int) -> tuple[int, int]:
    """Steps after which the order of the cells changes, fewer if a step has many rounds T; of how many views the first
    sees the puzzle embedding, once in 12 steps (lab/2026-11.md)."""
    steps = 1 if h_cycles >= 5 else 2
    return steps, 12 // steps


class Solved(NamedTuple):
    """Answers and how they were found; 0: no digit."""

    answers: np.ndarray
    """The first valid answer, otherwise the one with the highest halt logit, uint8 [B, S]."""
    halt_logits: np.ndarray
    """The answer's halt logit, read when the network last saw the puzzle embedding, float32 [B]; positive if the model
    considers it right."""
    steps: np.ndarray
    """Supervision steps from the start state to the answer, int64 [B]."""
    starts: np.ndarray
    """The restart, int64 [B]; 0: the first start."""
    right: np.ndarray
    """Whether the answer is valid, bool [B]."""
    history: list[np.ndarray]
    """The first puzzle's answer after each step from its answer's start state."""
    stopped: bool = False
    """Whether Ctrl-C ended the search."""


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
    complete: bool = False
    """Whether the question is a complete grid that keeps every rule: nothing to solve, not counted."""


class Rows(NamedTuple):
    """What was found for some puzzles."""

    rows: list[Row]
    history: list[np.ndarray]
    """The first puzzle's answer after each step."""
    geometry: Geometry
    seconds: float
    stopped: bool
    """Whether Ctrl-C ended the search, so that a puzzle may be unsolved because it was not tried."""


def keeps_rules(geometry: Geometry, questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Whether each answer [B, S] is valid and contains all clues, bool [B]."""
    clues = (questions == 0) | (questions == answers)
    return np.asarray(clues.all(axis=1) & ~broken_rule(geometry, answers))


def fault(geometry: Geometry, question: np.ndarray, answer: np.ndarray) -> str:
    """A description of what is wrong with an answer, empty if nothing is; blank cells are allowed."""
    side = geometry.side
    changed = np.flatnonzero((question > 0) & (question != answer))
    if len(changed):
        row, column = divmod(int(changed[0]), side)
        return f"the clue in row {row + 1}, column {column + 1} is changed"
    for number, unit in enumerate(geometry.units):
        values = answer[unit][answer[unit] > 0]
        repeated = [value for value in range(1, side + 1) if (values == value).sum() > 1]
        if repeated:
            kind = ("row", "column", "box")[number // side]
            return f"{SYMBOLS[repeated[0] - 1]} is repeated in {kind} {number % side + 1}"
    return ""


def geometry_of(trained: TrainedModel) -> Geometry:
    """The grid geometry that the model was trained on."""
    return Geometry(trained.config.data.box_rows, trained.config.data.box_cols)


def model_folders(place: Path) -> list[Path]:
    """A run folder or .safetensors file itself; of any other folder, the run folders in it."""
    if place.is_file() or (place / WEIGHTS).is_file():
        return [place]
    return sorted(path.parent for path in place.glob(f"*/{WEIGHTS}"))


def find_models(places: list[Path], cells: int, where: str = "") -> list[tuple[Path, TrainedModel]]:
    """Sudoku models for grids of `cells` cells, the largest first: it needs the fewest steps.

    `places`: see `model_folders`; `where`: the first puzzle was read, for errors.

    Raises:
        UserError: there is no model, or none for this size.
    """
    folders = [folder for place in places for folder in model_folders(place)]
    if not folders:
        raise UserError(
            f"no trained model in {', '.join(map(str, places))}: give --model the folder of a finished run"
        )
    loaded = [(folder, load_weights(folder)) for folder in folders]
    sudoku = [(path, trained) for path, trained in loaded if spec_of(trained.config.data.task).boxed]
    fitting = [(path, trained) for path, trained in sudoku if geometry_of(trained).cells == cells]
    if not sudoku:
        tasks = ", ".join(sorted({trained.config.data.task for _, trained in loaded}))
        raise UserError(
            f"{', '.join(map(str, places))} has no model of Sudoku, only of {tasks}: give --model a run on Sudoku"
        )
    if not fitting:
        sizes = sorted({geometry_of(trained).cells for _, trained in sudoku})
        known = " or ".join(f"{size} ({size**0.5:.0f}x{size**0.5:.0f})" for size in sizes)
        raise UserError(
            f"{where}the puzzle has {cells} characters, but there are models for {known}: write one "
            "character per cell, or give --model"
        )
    return sorted(fitting, key=lambda each: -sum(tensor.numel() for tensor in each[1].tensors.values()))


def in_float32(trained: TrainedModel) -> TrainedModel:
    """The model for float32 arithmetic, with the weights as its training's precision multiplied by them.

    It finds the same on every machine, and what the page finds.
    """
    if trained.meta["precision"] == "bfloat16":
        rounded = {
            name: tensor if "halt." in name else tensor.bfloat16().float()
            for name, tensor in trained.tensors.items()
        }
        trained = trained._replace(tensors=rounded)
    return trained._replace(meta=trained.meta | {"precision": "float32"})


def solve_texts(
    texts: list[str],
    places: list[str],
    models: list[tuple[Path, TrainedModel]],
    steps: int | None,
    restarts: int,
    precision: str,
    threads: int | None,
) -> Rows:
    """Ask the models in turn for each puzzle that has a solution until one of them solves it.

    Args:
        texts: puzzles of one size.
        places: where each was read, for errors.
        steps: most supervision steps; None: `DEEPER` times those of training.
        precision: float32, or the training's.
        threads: of the CPU; None: all.

    Raises:
        UserError: a text is no puzzle of this size.
    """
    geometry = geometry_of(models[0][1])
    questions = parse_puzzles(geometry, texts, places)
    started, blank = time.monotonic(), to_text(questions[0] * 0)
    solutions = _solutions(geometry, questions)
    rows = [Row(text, blank, solutions=number) for text, number in zip(texts, solutions, strict=True)]
    complete = questions.all(axis=1) & keeps_rules(geometry, questions, questions)
    for i in np.flatnonzero(complete).tolist():
        rows[i] = rows[i]._replace(answer=to_text(questions[i]), complete=True)
    history: list[np.ndarray] = []
    stopped = False
    left = [i for i, row in enumerate(rows) if row.solutions and not row.complete]
    for path, trained in models:
        if not left or stopped:
            break
        trained = in_float32(trained) if precision == "float32" else trained
        net, _ = inference_network(trained, EvaluationConfig(), open_backend("cpu", threads))
        most = steps or DEEPER * trained.config.model.halt_max_steps
        found = solve(net, geometry, questions[left], most, restarts, f"solving with {path.name}")
        for k, i in enumerate(left):
            solved = bool(found.right[k])
            if solved or not rows[i].model:
                answer, at = to_text(found.answers[k]), (int(found.steps[k]), int(found.starts[k]))
                rows[i] = Row(texts[i], answer, solved, *at, rows[i].solutions, path.name)
                history = found.history if i == 0 else history
        left, stopped = [i for i in left if not rows[i].solved], found.stopped
    return Rows(rows, history, geometry, time.monotonic() - started, stopped)


def _solutions(geometry: Geometry, questions: np.ndarray) -> list[int]:
    """Number of solutions by the exact solver, up to 2. Grids so large that it may take forever: -1, or 0 if the clues
    contradict one another."""
    from trm.tasks.sudoku import pool  # compiled: seconds

    if geometry.side > EXACT:
        return [0 if fault(geometry, question, question) else -1 for question in questions]
    return [int(number) for number in pool.solve(geometry, questions)[1]]


def solve(
    net: InferenceNetwork,
    geometry: Geometry,
    questions: np.ndarray,
    steps: int,
    restarts: int = 1,
    name: str = "solving",
) -> Solved:
    """Solve puzzles, uint8 [B, S]. All restarts but the first see them under a random symmetry, and within each the
    order of the cells changes by `view_settings`; every second view sees `VIEW_GUESSES` blank cells filled.

    The rules, not the model, decide when to stop: a puzzle is done at its first valid answer. `name`: for progress.
    """
    count = len(questions)
    progress = Progress(name, restarts * count, "attempts", every=2.0)
    solved = Solved(
        np.zeros_like(questions),
        np.full(count, -np.inf, dtype=np.float32),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=bool),
        [],
    )
    try:
        _search(net, geometry, questions, steps, restarts, progress, solved)
    except KeyboardInterrupt:  # what is solved is not lost
        return solved._replace(stopped=True)
    progress.close(restarts * count)
    return solved


@torch.no_grad()
def _search(
    net: InferenceNetwork,
    geometry: Geometry,
    questions: np.ndarray,
    steps: int,
    restarts: int,
    progress: Progress,
    solved: Solved,
) -> None:
    """Note each puzzle's answer in `solved` as soon as it is right, or the best one of the last steps."""
    count, device = len(questions), net.h_init.device
    size = net.batch_rows(geometry.cells + net.arch.puzzle_tokens)
    boxes = DataConfig(box_rows=geometry.box_rows, box_cols=geometry.box_cols)
    view_steps, puzzle_every = view_settings(net.h_cycles)
    views = random_views(boxes, view_steps, steps, puzzle_every, VIEW_GUESSES)
    for start, symmetry in enumerate(restart_symmetries(boxes, restarts)):
        left = np.flatnonzero(~solved.right)
        for first in range(0, len(left), size):
            batch = left[first : first + size]  # later only those that are not solved yet
            tokens = torch.from_numpy(questions[batch] + 1).to(device)
            puzzle = torch.zeros(len(batch), dtype=torch.int32, device=device)
            states = Pass(net, tokens, puzzle, symmetry, views)
            history: list[np.ndarray] = []
            for step in range(1, steps + 1):
                logits, halt = states.step()
                answers = np.maximum(states.answers(logits).cpu().numpy(), 1) - 1
                if batch[0] == 0:
                    history.append(answers[0])
                logit = halt.float().cpu().numpy()
                right = keeps_rules(geometry, questions[batch], answers)
                better = right | ((step == steps) & (logit > solved.halt_logits[batch]))
                better &= ~solved.right[batch]
                chosen = batch[better]
                solved.answers[chosen], solved.halt_logits[chosen] = answers[better], logit[better]
                solved.steps[chosen], solved.starts[chosen] = step, start
                solved.right[chosen] = right[better]
                if better[0] and batch[0] == 0:
                    solved.history[:] = history
                right_now, tried = int(solved.right.sum()), int((~solved.right[left[:first]]).sum())
                done = restarts * right_now + start * (count - right_now) + tried
                where = f"step {step} of {steps}, start {start + 1} of {restarts}"
                progress.update(done, f", {right_now:,} of {count:,} puzzles solved, {where}")
                kept = np.flatnonzero(~solved.right[batch])
                if not len(kept):
                    break
                if 2 * len(kept) <= len(batch):
                    batch = batch[kept]
                    states.keep(torch.from_numpy(kept).to(device))


def panels(geometry: Geometry, question: np.ndarray, history: list[np.ndarray], width: int) -> Iterator[str]:
    """Lines of text: the puzzle and its answers after steps 1, 2, 4, 8, ... and the last, side by side."""
    last = len(history)
    shown = [step for step in (2**k for k in range(20)) if step < last] + [last]
    titled = [("puzzle", question)] + [(f"step {step}", history[step - 1]) for step in shown]
    rows, columns = geometry.box_rows, geometry.box_cols
    meta = Meta(TASK.name, geometry.cells, geometry.side + 2, 1, box_rows=rows, box_cols=columns)
    drawn = [[title, *TASK.lines(grid + 1, meta)] for title, grid in titled]
    across = max(len(line) for lines in drawn for line in lines) + 3
    each = max(1, width // across)
    for first in range(0, len(drawn), each):
        for parts in zip(*drawn[first : first + each], strict=True):
            yield "".join(f"{part:<{across}}" for part in parts).rstrip()
        yield ""
