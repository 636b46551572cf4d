"""Trained models -> the JSON of the page: weights in bfloat16, which is what `trm solve` computes with, as base64."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trm.errors import UserError
from trm.evaluation.solve import DEEPER, VIEW_GUESSES, geometry_of, model_folders, view_settings
from trm.evaluation.symmetry import random_views, restart_symmetries
from trm.study.tasks import GUESS_FROM, spec_of
from trm.training.outputs import PUZZLE, TrainedModel, load_weights

RESTARTS = 8
"""The most starts that a visitor can choose."""
LIMIT = 1_000_000
"""Bytes of all weights as base64."""


def sources(folder: Path) -> list[dict[str, Any]]:
    """The Sudoku models in `folder` or its subfolders that the page can run, from small to large.

    Raises:
        UserError: there are none, or they are too large for a page.
    """
    loaded = [(path.resolve().name, load_weights(path)) for path in model_folders(folder)]
    found = [source(name, trained) for name, trained in loaded if runs_in_page(trained)]
    if not found:
        raise UserError(
            f"{folder} has no Sudoku model with the MLP mixer: put one there with `trm convert to-model`"
        )
    size = sum(len(item["data"]) for item in found)
    if size > LIMIT:
        raise UserError(
            f"the models in {folder} take {size:,} bytes in a page, more than {LIMIT:,}: remove or shrink one"
        )
    return sorted(found, key=lambda item: (item["cells"], item["parameters"]))


def runs_in_page(trained: TrainedModel) -> bool:
    """Whether the page's program can compute the model: Sudoku with digits up to 9, MLP mixer."""
    return (
        spec_of(trained.config.data.task).boxed
        and trained.config.model.mixer == "mlp"
        and geometry_of(trained).side <= 9
    )


def source(name: str, trained: TrainedModel) -> dict[str, Any]:
    """One model: sizes, `shapes` [name, rows, columns] in the order of `data`, halt head, symmetries, views."""
    model, geometry = trained.config.model, geometry_of(trained)
    steps = DEEPER * model.halt_max_steps
    view_steps, puzzle_every = view_settings(model.h_cycles)
    views = random_views(trained.config.data, view_steps, steps)
    weights = trained.weights("ema")
    halt = {"weight": weights.pop("halt.weight")[0].tolist(), "bias": weights.pop("halt.bias")[0].item()}
    vectors = {key: trained.tensors[f"buffers.{key}"] for key in ("h_init", "l_init")}
    if model.puzzle_tokens:
        table = trained.tensors.get(f"raw.{PUZZLE}")
        vectors[PUZZLE] = torch.zeros(model.d_model) if table is None else table[0]
    tensors = weights | {key: vector[None] for key, vector in vectors.items()}
    exponents, data = packed(torch.cat([tensor.flatten() for tensor in tensors.values()]))
    return {
        "name": name,
        "parameters": sum(tensor.numel() for tensor in trained.weights("ema").values()),
        "cells": geometry.cells,
        "box": [geometry.box_rows, geometry.box_cols],
        "layers": model.layers,
        "hCycles": model.h_cycles,
        "lCycles": model.l_cycles,
        "puzzleTokens": model.puzzle_tokens,
        "steps": steps,
        "viewSteps": view_steps,
        "viewPuzzleEvery": puzzle_every,
        "viewGuesses": VIEW_GUESSES,
        "guessFrom": GUESS_FROM,
        "views": [cells.tolist() for cells in views.cells] if views else [],
        "halt": halt,
        "symmetries": [
            {"values": (symmetry.tokens[1:] - 1).tolist(), "cells": symmetry.cells.tolist()}
            for symmetry in restart_symmetries(trained.config.data, RESTARTS)
        ],
        "shapes": [[key, *tensor.shape] for key, tensor in tensors.items()],
        "exponents": exponents,
        "data": base64.b64encode(data).decode(),
    }


def packed(values: torch.Tensor) -> tuple[list[int], bytes]:
    """Values [N] as bfloat16 in two thirds of its size: exponents, the most frequent first, and the data.

    A byte of sign and mantissa for each value, then the place of each exponent among `exponents` in unary: so many
    zeros and a one. Trained weights have few exponents, the next one half as often: 2.8 bits instead of 8.
    """
    halves = values.bfloat16().view(torch.int16).numpy().view(np.uint16)
    found, index, counts = np.unique(halves >> 7 & 0xFF, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    ends = np.cumsum(np.argsort(order)[index] + 1)
    unary = np.zeros(ends[-1], np.uint8)
    unary[ends - 1] = 1
    rest = (halves >> 8 & 0x80 | halves & 0x7F).astype(np.uint8)
    return found[order].tolist(), rest.tobytes() + np.packbits(unary).tobytes()
