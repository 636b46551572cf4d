"""Inference compute: accuracy against test-time FLOPs for every way to spend them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from trm.analysis.figures.base import (
    OKABE_ITO,
    ONE,
    Drawing,
    axis_scale,
    canvas,
    finish,
    fit_of,
    heading,
    is_value,
    legend,
    ordered,
    strip_of,
    table_of,
)
from trm.analysis.labels import label
from trm.analysis.sentences.laws import group_sentence
from trm.analysis.sentences.special import inference_answer, inference_sentence
from trm.analysis.specs import FrontierFigure
from trm.analysis.stats.intervals import mean
from trm.analysis.tables import Table
from trm.analysis.words import place
from trm.errors import UserError

POLICIES = {
    "fixed": ("more supervision steps", OKABE_ITO[0], "o", "-"),
    "confident": ("stop when the halt logit is positive", OKABE_ITO[2], "s", "-"),
    "restarts": ("noisy restarts, picked by the halt logit", OKABE_ITO[1], "^", "-"),
    "majority": ("restarts, majority vote", OKABE_ITO[3], "v", "--"),
    "oracle": ("restarts, any of them right (upper bound)", "#7F7F7F", "D", ":"),
}


def draw(spec: FrontierFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """One panel, or one for each hue value."""
    table = table_of(tables, tables[0].experiment)
    rows = test_rows(table, spec)
    hues = ordered(rows[spec.hue]) if spec.hue else [None]
    found = spec.fits(table.experiment)
    fit = fit_of(fits, found[0]) if found else None
    wide = min(3, len(hues))
    deep = -(-len(hues) // wide)
    shown = [policy for policy in POLICIES if (rows["policy"] == policy).any()]
    figure, axes = canvas(
        1.45 * ONE if wide == 1 else 2.75 * wide,
        2.9 * deep,
        deep,
        wide,
        sharey=True,
        strip=strip_of(len(shown), 2),
    )
    best: dict[str, tuple[float, float, str]] = {}
    for axis, hue in zip(axes.flat, hues):
        part = rows[is_value(rows[spec.hue], hue)] if spec.hue else rows
        best = panel(axis, part) if hue == hues[0] else {**best, **panel(axis, part)}
        if spec.hue:
            heading(axis, place(spec.hue, hue))
    for axis in list(axes.flat)[len(hues) :]:
        axis.set_axis_off()
    legend(figure, handles(axes[0, 0], shown), 2)
    title = spec.title or "Accuracy against test-time compute"
    if not spec.hue:
        heading(axes[0, 0], title)
    sentence = inference_sentence(gains(rows))
    if fit and "forms" in fit["groups"][0]:
        sentence += " With more supervision steps: " + group_sentence(fit["groups"][0], "flops_per_puzzle")
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=(
            "Means over seeds with Student 95 % interval; faint marks: single seeds. Full lines spend compute as a "
            "user could; majority vote and the oracle (right if any restart is) stand beside for comparison. Numbers "
            "along the blue line: supervision steps."
        ),
        sentence=sentence,
        answer=inference_answer(gains(rows)),
        numbers={"best": best, "gains": gains(rows)},
    )


def test_rows(table: Table, spec: Any) -> pd.DataFrame:
    """Every policy's rows on the test split.

    Raises:
        UserError: the evaluations hold no test-time FLOPs.
    """
    rows = pd.concat(
        [table.select({**spec.where, "policy": policy}) for policy in POLICIES], ignore_index=True
    )
    rows = rows[pd.to_numeric(rows["flops_per_puzzle"], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"no evaluation of {table.experiment} has test-time FLOPs: set evaluation.unroll")
    return rows


def summarise(rows: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Mean accuracy and cost of a policy at each setting, by rising cost: flops, value, low, high, eval_steps."""
    lines = []
    for (steps, restarts), part in rows[rows["policy"] == policy].groupby(
        ["eval_steps", "restarts"], sort=True
    ):
        found = mean(part.groupby("seed")["exact_accuracy"].mean())
        low, high = found.bounds or (np.nan, np.nan)
        lines.append(
            (part["flops_per_puzzle"].mean(), found.value, max(0, low), min(1, high), steps, restarts)
        )
    frame = pd.DataFrame(lines, columns=["flops", "value", "low", "high", "eval_steps", "restarts"])
    return frame.sort_values("flops", ignore_index=True)


def gains(rows: pd.DataFrame) -> dict[str, Any]:
    """What each policy reaches, against the reference: as many steps as in training, no restart."""
    trained = rows["model.halt_max_steps"]
    base = rows[(rows["policy"] == "fixed") & (rows["eval_steps"] == trained)]
    base_value = mean(base.groupby("seed")["exact_accuracy"].mean())
    found: dict[str, Any] = {
        "reference": {
            "value": base_value.value,
            "flops": float(base["flops_per_puzzle"].mean()) if len(base) else None,
        }
    }
    for policy in POLICIES:
        points = summarise(rows, policy)
        if not len(points):
            continue
        top = points.loc[points["value"].idxmax()]
        part = rows[
            (rows["policy"] == policy)
            & (rows["eval_steps"] == top["eval_steps"])
            & (rows["restarts"] == top["restarts"])
        ]
        left = base.groupby("seed")["exact_accuracy"].mean()
        right = part.groupby("seed")["exact_accuracy"].mean()
        shared = left.index.intersection(right.index)
        change = mean(right.loc[shared] - left.loc[shared])
        found[policy] = {
            "value": float(top["value"]),
            "flops": float(top["flops"]),
            "steps": int(top["eval_steps"]),
            "restarts": int(top["restarts"]),
            "change": change.value,
            "low": change.low,
            "high": change.high,
        }
    return found


def panel(axes: Axes, rows: pd.DataFrame) -> dict[str, tuple[float, float, str]]:
    """Draw all policies into one panel. Shared with compute_frontier."""
    best = {}
    for policy, (name, colour, marker, line) in POLICIES.items():
        points = summarise(rows, policy)
        if not len(points):
            continue
        part = rows[rows["policy"] == policy]
        axes.plot(
            part["flops_per_puzzle"],
            part["exact_accuracy"],
            marker,
            color=colour,
            alpha=0.25,
            markersize=2.2,
            mew=0,
        )
        axes.vlines(points["flops"], points["low"], points["high"], color=colour, linewidth=0.9)
        axes.plot(points["flops"], points["value"], marker=marker, color=colour, linestyle=line, markersize=4)
        if policy == "fixed":
            for _, point in points.iterrows():
                axes.annotate(
                    f"{int(point['eval_steps'])}",
                    (point["flops"], point["value"]),
                    xytext=(4, -8),
                    textcoords="offset points",
                    fontsize=5.5,
                    color=colour,
                    path_effects=[withStroke(linewidth=1.5, foreground="white")],
                    zorder=6,
                )
        top = points.loc[points["value"].idxmax()]
        best[policy] = (float(top["flops"]), float(top["value"]), name)
    axis_scale(axes, "x", label("flops_per_puzzle"), rows["flops_per_puzzle"].to_numpy())
    axis_scale(axes, "y", label("exact_accuracy"), rows["exact_accuracy"].to_numpy(), log=False)
    return best


def handles(axes: Axes, shown: list[str]) -> list[Any]:
    """Legend marks of the policies drawn."""
    return [
        axes.plot(
            [],
            [],
            marker=POLICIES[p][2],
            color=POLICIES[p][1],
            linestyle=POLICIES[p][3],
            label=POLICIES[p][0],
        )[0]
        for p in shown
    ]
