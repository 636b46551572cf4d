"""`exchange`: what more steps solve, in one pass or in new attempts, and which of the two has a memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trm.analysis.claims import Claim, level
from trm.analysis.kinds.restarts import attempts
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure
from trm.analysis.words import hued
from trm.errors import UserError


class Spec(Figure):
    """Left: puzzles solved against all steps taken. Right: the chance that as many steps again solve another one."""

    kind: Literal["exchange"] = "exchange"
    reading: ClassVar[str] = (
        "left: puzzles solved by one long pass (line) and by new attempts (marks) of equal steps; right: the chance of "
        "an unsolved puzzle to be solved when the steps are doubled either way"
    )
    hue: Column | None = None
    """One policy for each value; null: the grid points."""


@dataclass(frozen=True)
class Curve:
    """Shares solved along one way to spend steps, by seed."""

    steps: Any
    """Total steps, rising by factors of two, [n]."""
    shares: Any
    """[seeds, n]."""

    @property
    def hazard(self) -> Any:
        """Chance that a puzzle unsolved so far is solved when the steps are doubled, [seeds, n - 1]."""
        return np.diff(self.shares, axis=1) / np.maximum(1 - self.shares[:, :-1], 1e-9)


def curves(rows: pd.DataFrame, fixed: pd.DataFrame) -> tuple[Curve, Curve]:
    """One pass and new attempts of one policy, at the same steps. UserError: they share fewer than two."""
    from trm.analysis.fits.restarts import any_of

    own = int(rows["eval_steps"].iloc[0])
    deep, wide, depths = [], [], [own]
    while 2 * depths[-1] in set(fixed["eval_steps"]):
        depths.append(2 * depths[-1])
    for seed, part in rows.groupby("seed"):
        most = part.sort_values("restarts")["solved_counts"].iloc[-1]
        shares = any_of(json.loads(most))
        wide.append([shares[k - 1] for k in 2 ** np.arange(int(np.log2(len(shares))) + 1)])
        here = fixed[fixed["seed"] == seed].groupby("eval_steps")["exact_accuracy"].mean()
        deep.append([float(here.get(depth, np.nan)) for depth in depths])
    if len(depths) < 2 or len(wide[0]) < 2 or np.isnan(deep).any():
        raise UserError(
            f"attempts of {own} steps and one pass of twice as many were not both measured: set evaluation.unroll and "
            "evaluation.restarts"
        )
    places = own * 2 ** np.arange(len(wide[0]))
    return Curve(np.array(depths), np.array(deep)), Curve(places, np.array(wide))


def worth(deep: Curve, wide: Curve) -> stats.Mean:
    """Attempts that solve as many as the longest pass: geometric mean and interval over seeds, up to those made."""
    made = np.log2(wide.steps / wide.steps[0])
    found = stats.mean([float(np.interp(at, row, made)) for at, row in zip(deep.shares[:, -1], wide.shares)])
    bounds = found.bounds and (
        max(1.0, 2 ** found.bounds[0]),
        min(2 ** found.bounds[1], float(2 ** made[-1])),
    )
    return stats.Mean(float(2**found.value), bounds, found.n)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    rows, key = attempts(tables[0], spec)
    passes = tables[0].select({**spec.where, "policy": "fixed"}, ["label"])
    found = {
        value: curves(part, passes[passes["label"] == part["label"].iloc[0]])
        for value, part in common.groups(rows, key).items()
    }
    figure, axes = common.panels(2, 3.0)
    handles = panel(axes, found, key)
    common.legend(figure, handles, 3)
    deep, wide = next(iter(found.values()))
    last, cost = int(deep.steps[-1]), deep.steps[-1] / wide.steps[0]
    return common.Drawing(
        figure,
        pd.concat([rows, passes], ignore_index=True),
        title="Going on or starting again",
        caption=(
            "Left: puzzles solved by one pass of so many steps (line) and by at least one of several attempts that "
            "take as many in all (marks). Right: the chance that a puzzle unsolved so far is solved when the steps are "
            "doubled, with 95 % intervals over seeds (Student's). Attempts remember nothing; a line that falls below "
            "the marks is a pass that is held by where it has got to (0: it loses as many as it solves). "
        ),
        claims=[claim(*pair, hued(key, value)[6:]) for value, pair in found.items()],
        remarks=f"That pass has {last} steps and costs as much as {cost:g} attempts.",
    )


def claim(deep: Curve, wide: Curve, policy: str) -> Claim:
    """What the longest pass is worth, at least."""
    found = worth(deep, wide)
    return level("pass_worth", policy, found, " or more" * int(found.value * wide.steps[0] >= wide.steps[-1]))


def panel(axes: Any, found: Mapping[Any, tuple[Curve, Curve]], key: str | None) -> list[Any]:
    """Both panels, a mark a policy and a line for each pass that differs; returns the legend's entries."""
    handles, drawn = [], list[Any]()
    for index, (value, colour) in enumerate(common.colours(list(found)).items()):
        deep, wide = found[value]
        name = common.hue_name(key, value) if key else "new attempts"
        style: dict[str, Any] = {"color": colour, "marker": common.MARKERS[index % 8], "linestyle": "none"}
        handles.append(common.entry(axes[0], name, **style))
        _line(axes, wide, {**style, "markersize": 4.2})
        if not any(np.array_equal(deep.shares, other) for other in drawn):
            line = {"color": "black", "linestyle": common.DASHES[len(drawn) % 4], "linewidth": 1.1}
            handles.append(common.entry(axes[0], f"one pass, {name}" if drawn else "one pass", **line))
            _line(axes, deep, line)
            drawn.append(deep.shares)
    places = np.unique(np.concatenate([curve.steps for pair in found.values() for curve in pair]))
    for axis, metric, name in zip(
        axes, ("solved", "hazard"), ("Solved (%)", "Solved of the rest by as many again (%)")
    ):
        common.axis_scale(axis, "x", Label("supervision steps so far", log=True), places)
        common.axis_scale(axis, "y", label(metric), log=False)
        axis.set_ylabel(name)
    axes[0].set_ylim(top=min(1.02, axes[0].get_ylim()[1]))
    axes[1].set_ylim(0, 1)
    return handles


def _line(axes: Any, curve: Curve, style: Mapping[str, Any]) -> None:
    axes[0].plot(curve.steps, curve.shares.mean(axis=0), **style)
    hazards = [stats.mean(values).clipped(0.0, 1.0) for values in curve.hazard.T]
    axes[1].plot(curve.steps[:-1], [max(0.0, hazard.value) for hazard in hazards], **style)
    low, high = zip(*(hazard.bounds or (hazard.value,) * 2 for hazard in hazards))
    axes[1].vlines(curve.steps[:-1], low, high, color=style["color"], linewidth=0.7, alpha=0.5)
