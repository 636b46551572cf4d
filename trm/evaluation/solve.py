"""Sudoku solved by a trained model: supervision steps until an answer satisfies the rules, from one or more starts.

Shapes: B puzzles, S cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trm.errors import UserError
from trm.evaluation.policies import restart_noise
from trm.network.inference import InferenceNetwork, inference_batch
from trm.study.tasks import spec_of
from trm.tasks.sudoku.geometry import SYMBOLS, Geometry, broken_rule, symbol_values
from trm.training.outputs import WEIGHTS, TrainedModel, load_weights


class Solved(NamedTuple):
    """Answers and how they were found; values, 0 where the model wrote no digit."""

    answers: np.ndarray
    """uint8 [B, S]: the first valid answer, else the one with the highest halt logit."""
    halt_logits: np.ndarray
    """float32 [B]: of that answer; positive where the model believes that it is right."""
    steps: np.ndarray
    """int64 [B]: supervision steps up to that answer, within its start."""
    starts: np.ndarray
    """int64 [B]: 0 for the model's own start state, else the number of the noisy one."""
    right: np.ndarray
    """bool [B]: satisfies the rules and every clue."""
    history: list[np.ndarray]
    """The first puzzle's answer after each step of the start that its answer comes from."""


def keeps_rules(geometry: Geometry, questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Whether each answer [B, S] has every digit once in each row, column and box, and every clue: bool [B]."""
    clues = (questions == 0) | (questions == answers)
    return np.asarray(clues.all(axis=1) & ~broken_rule(geometry, answers))


def fault(geometry: Geometry, question: np.ndarray, answer: np.ndarray) -> str:
    """What is wrong with one grid, in words; empty: nothing. Blank cells of `answer` are not counted as faults."""
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


def parse_puzzle(text: str, geometry: Geometry) -> np.ndarray:
    """Values of a puzzle's text, uint8 [S]; 0: blank.

    Raises:
        UserError: for a character that is not a symbol of this size, and for contradictory clues.
    """
    values = symbol_values(geometry.side)[np.frombuffer(text.encode("latin-1", "replace"), dtype=np.uint8)]
    if (values == 255).any():
        at = int((values == 255).argmax())
        raise UserError(
            f"the puzzle has {text[at]!r} at character {at + 1}: write 1-{SYMBOLS[geometry.side - 1]} for clues and . "
            "or 0 for blanks"
        )
    if found := fault(geometry, values, values):
        raise UserError(f"the puzzle's clues contradict one another: {found}")
    return values


def geometry_of(trained: TrainedModel) -> Geometry:
    """Boxes of the grids that the model was trained on."""
    return Geometry(trained.config.data.box_rows, trained.config.data.box_cols)


def find_models(places: list[Path], cells: int) -> list[tuple[Path, TrainedModel]]:
    """Sudoku models for grids of `cells` cells: run folders, .safetensors files, or folders of such folders.

    Raises:
        UserError: where a place holds no model, or none for this size.
    """
    folders: list[Path] = []
    for place in places:
        if place.is_file() or (place / WEIGHTS).is_file():
            folders.append(place)
        else:
            folders += sorted(path.parent for path in place.glob(f"*/{WEIGHTS}"))
    if not folders:
        raise UserError(
            f"no trained model in {', '.join(map(str, places))}: give --model the folder of a finished run"
        )
    loaded = [(folder, load_weights(folder)) for folder in folders]
    sudoku = [(path, trained) for path, trained in loaded if spec_of(trained.config.data.task).boxed]
    fitting = [(path, trained) for path, trained in sudoku if geometry_of(trained).cells == cells]
    if not fitting:
        sizes = sorted({geometry_of(trained).cells for _, trained in sudoku})
        known = " or ".join(f"{size} ({size**0.5:.0f}x{size**0.5:.0f})" for size in sizes)
        raise UserError(
            f"the puzzle has {cells} characters, and there are models for {known or 'no Sudoku'}: count the "
            "characters, one a cell, or give --model"
        )
    return fitting


@torch.no_grad()
def solve(
    net: InferenceNetwork,
    geometry: Geometry,
    questions: np.ndarray,
    steps: int,
    restarts: int = 1,
    noise: float = 0.3,
) -> Solved:
    """Solve puzzles: values uint8 [B, S]. Starts after the first have normal noise of deviation `noise`.

    The rules decide when to stop, not the model: a puzzle is done with the first answer that keeps them.
    """
    count, device = len(questions), net.h_init.device
    found = Solved(
        np.zeros_like(questions),
        np.full(count, -np.inf, dtype=np.float32),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=bool),
        [],
    )
    size = inference_batch(geometry.cells + net.arch.puzzle_tokens, len(net.h_init), device)
    for start in range(restarts):
        left = np.flatnonzero(~found.right)
        for first in range(0, len(left), size):
            own = left[first : first + size]
            tokens = torch.from_numpy(questions[own] + 1).to(device)
            x = net.embed(tokens, torch.zeros(len(own), dtype=torch.int32, device=device))
            z_H, z_L = net.start(len(own), len(x))
            if start:
                z_H, z_L = (
                    restart_noise(z, noise, start, first, which) for which, z in enumerate((z_H, z_L))
                )
            _one_start(net, geometry, questions, own, (z_H, z_L, x), (start, steps), found)
    return found


def _one_start(
    net: InferenceNetwork,
    geometry: Geometry,
    questions: np.ndarray,
    own: np.ndarray,
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    at: tuple[int, int],
    found: Solved,
) -> None:
    """Take up to `at[1]` steps with the puzzles `own` and keep in `found` what is better than before."""
    (z_H, z_L, x), (start, steps) = states, at
    history: list[np.ndarray] = []
    for step in range(1, steps + 1):
        z_H, z_L, logits, halt = net.step(z_H, z_L, x)
        answers = np.maximum(logits.argmax(-1).t().cpu().numpy(), 1).astype(np.uint8) - 1
        history.append(answers[0])
        sure = halt.float().cpu().numpy()
        right = keeps_rules(geometry, questions[own], answers)
        better = ~found.right[own] & (right | ((step == steps) & (sure > found.halt_logits[own])))
        chosen = own[better]
        found.answers[chosen], found.halt_logits[chosen] = answers[better], sure[better]
        found.steps[chosen], found.starts[chosen] = step, start
        found.right[chosen] = right[better]
        if len(better) and better[0] and own[0] == 0:
            found.history[:] = history
        if found.right[own].all():
            return


def panels(geometry: Geometry, question: np.ndarray, history: list[np.ndarray], width: int) -> Iterator[str]:
    """Lines of text: the puzzle and its answer after steps 1, 2, 4, 8, ... and the last one, side by side."""
    last = len(history)
    shown = [step for step in (2**k for k in range(20)) if step < last] + [last]
    titled = [("puzzle", question)] + [(f"step {step}", history[step - 1]) for step in shown]
    drawn = [[title, *grid_lines(geometry, grid)] for title, grid in titled]
    across = max(len(line) for lines in drawn for line in lines) + 3
    each = max(1, width // across)
    for first in range(0, len(drawn), each):
        for parts in zip(*drawn[first : first + each], strict=True):
            yield "".join(f"{part:<{across}}" for part in parts).rstrip()
        yield ""


def grid_lines(geometry: Geometry, values: np.ndarray) -> list[str]:
    """A grid as text, its boxes set apart."""
    side, height, width = geometry.side, geometry.box_rows, geometry.box_cols
    texts = [
        "".join("." if v == 0 else SYMBOLS[v - 1] for v in row) for row in values.reshape(side, side).tolist()
    ]
    spaced = [" ".join(text[k : k + width] for k in range(0, side, width)) for text in texts]
    return [
        line for k, text in enumerate(spaced) for line in ([""] if k and k % height == 0 else []) + [text]
    ]
