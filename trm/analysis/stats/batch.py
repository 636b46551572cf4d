"""Batch size: what a target costs, the critical batch, and the gradient noise scale.

McCandlish et al. 2018, arXiv 1812.06162. The tradeoff (eq. 2.11) reads S = Smin (1 + B*/B), E = Emin (1 + B/B*) with
E = S B, so that B* = Emin / Smin. The simple noise scale (eq. 2.9) is tr(Sigma) / |G|^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from trm.analysis.stats.intervals import Mean, mean
from trm.analysis.stats.targets import first_reach


@dataclass(frozen=True)
class Cost:
    """What a target costs at one batch size, over the seeds that reached it."""

    batch: float
    steps: Mean
    rows: Mean
    flops: Mean
    seconds: Mean
    reached: int
    runs: int


def costs(rows: pd.DataFrame, curves: pd.DataFrame, target: float, x: str) -> list[Cost]:
    """Steps, puzzles, FLOPs and seconds to the validation accuracy `target`, for each value of column x."""
    histories = dict(iter(curves.groupby("run", sort=False)))
    found = []
    for batch, part in by_number(rows, x):
        lines = []
        for _, run in part.iterrows():
            history = histories.get(run["run"])
            if history is None:
                continue
            reached = [
                first_reach(history, target, axis=axis) for axis in ("step", "rows", "flops", "seconds")
            ]
            if reached[0] is not None:
                lines.append(reached)
        steps, offered, flops, seconds = (mean(column) for column in np.array(lines, float).reshape(-1, 4).T)
        found.append(Cost(batch, steps, offered, flops, seconds, reached=len(lines), runs=len(part)))
    return found


def by_number(rows: pd.DataFrame, column: str) -> list[tuple[float, pd.DataFrame]]:
    """(number, its rows) for each number in a column, in rising order."""
    return [(float(value), rows[rows[column] == value]) for value in np.unique(rows[column].dropna())]


def logged_noise_scale(rows: pd.DataFrame, curves: pd.DataFrame, x: str) -> list[tuple[float, Mean]]:
    """The noise scale that training measured between micro-batches: median over each run's last half, mean over
    seeds."""
    if "train/noise_scale" not in curves:
        return []
    medians = {}
    for run, history in curves.groupby("run", sort=False):
        known = history["train/noise_scale"].dropna()
        known = known[len(known) // 2 :]
        if len(known) and known.median() > 0:
            medians[run] = float(known.median())
    found = []
    for batch, part in by_number(rows, x):
        summary = mean([medians[run] for run in part["run"] if run in medians])
        if summary.n:
            found.append((batch, summary))
    return found


def noise_scale(
    rows: pd.DataFrame, curves: pd.DataFrame, x: str, parts: Sequence[float] = (0.25, 0.5, 0.75)
) -> list[tuple[float, float]]:
    """The noise scale from gradient norms at several batch sizes, at equal shares of training.

    |G_B|^2 = |G|^2 + tr(Sigma) / B (appendix A.1): a line in 1/B whose slope over offset is the scale. The runs have
    drifted apart by then, so this is an estimate of its order only.

    Returns:
        (share of training, noise scale) where the line has positive slope and offset.
    """
    if "train/grad_norm" not in curves or rows[x].nunique() < 3:
        return []
    histories = dict(iter(curves.groupby("run", sort=False)))
    found = []
    for part in parts:
        inverse, square = [], []
        for _, run in rows.iterrows():
            history = histories.get(run["run"])
            if history is None:
                continue
            norms = history[["step", "train/grad_norm"]].dropna()
            place = norms["step"] / history["step"].iloc[-1]
            window = norms[(place - part).abs() <= 0.06]["train/grad_norm"]
            if len(window):
                inverse.append(1 / float(run[x]))
                square.append(float((window**2).mean()))
        if len(set(inverse)) < 3:
            continue
        slope, offset = np.polyfit(inverse, square, 1)
        if slope > 0 and offset > 0:
            found.append((part, float(slope / offset)))
    return found
