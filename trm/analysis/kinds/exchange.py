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


def worth(deep: Curve, wide: Curve) -> tuple[int, float, stats.Mean]:
    """Steps of the longest pass, the attempts that cost as much, and those that solve as much: geometric mean and
    interval over seeds."""
    cost, most = np.log2(wide.steps / wide.steps[0]), int(deep.steps[-1])
    found = stats.mean(
        [
            float(np.interp(last, wide_shares, cost))
            for last, wide_shares in zip(deep.shares[:, -1], wide.shares)
        ]
    )
    bounds = found.bounds and (max(1.0, 2 ** found.bounds[0]), float(2 ** found.bounds[1]))
    return most, most / float(wide.steps[0]), stats.Mean(float(2**found.value), bounds, found.n)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    rows, key = attempts(tables[0], spec)
    passes = tables[0].select({**spec.where, "policy": "fixed"}, ["label"])
    passes = passes[pd.to_numeric(passes["eval_steps"]).notna()]
    labels = {value: part["label"].iloc[0] for value, part in common.groups(rows, key).items()}
    found = {
        value: curves(part, passes[passes["label"] == labels[value]])
        for value, part in common.groups(rows, key).items()
    }
    figure, axes = common.panels(2, 3.0)
    panel(axes, found)
    common.hue_legend(figure, key, common.colours(list(found)))
    return common.Drawing(
        figure,
        pd.concat([rows, passes], ignore_index=True),
        title="Going on or starting again",
        caption=(
            "Left: puzzles solved by one pass of so many steps (line) and by at least one of several attempts that "
            "take as many in all (marks). Right: the chance that a puzzle unsolved so far is solved when the steps are "
            "doubled, with 95 % intervals over seeds (Student's). Attempts that start anew remember nothing: where the "
            "line lies below the marks, a pass is held by what it has tried. "
        ),
        claims=claims(found, key),
    )


def panel(axes: Any, found: Mapping[Any, tuple[Curve, Curve]]) -> None:
    """Both panels, one colour a policy."""
    for index, (value, colour) in enumerate(common.colours(list(found)).items()):
        deep, wide = found[value]
        marker = common.MARKERS[index % 8]
        axes[0].plot(deep.steps, deep.shares.mean(axis=0), color=colour, linewidth=1.2)
        axes[0].plot(wide.steps, wide.shares.mean(axis=0), marker, color=colour, markersize=4.2)
        for curve, style in ((deep, {"linestyle": "-"}), (wide, {"linestyle": "none", "marker": marker})):
            hazards = [stats.mean(values).clipped(0.0, 1.0) for values in curve.hazard.T]
            places = curve.steps[:-1]
            axes[1].plot(
                places, [h.value for h in hazards], color=colour, markersize=4.2, linewidth=1.2, **style
            )
            low, high = zip(*(h.bounds or (h.value, h.value) for h in hazards))
            axes[1].vlines(places, low, high, color=colour, linewidth=0.8, alpha=0.6)
    places = np.unique(np.concatenate([curve.steps for pair in found.values() for curve in pair]))
    for axis, name in zip(axes, ("solved", "hazard")):
        common.axis_scale(axis, "x", Label("supervision steps so far", log=True), places)
        common.axis_scale(axis, "y", label(name), log=False)
    axes[0].set_ylabel("Solved (%)")
    axes[1].set_ylabel("Solved of the rest by as many again (%)")
    axes[0].set_ylim(top=min(1.02, axes[0].get_ylim()[1]))
    axes[1].set_ylim(0, 1)


def claims(found: Mapping[Any, tuple[Curve, Curve]], key: str | None) -> list[Claim]:
    """How many attempts the longest pass is worth."""
    made = []
    for value, (deep, wide) in found.items():
        steps, cost, own = worth(deep, wide)
        made.append(
            level("pass_worth", hued(key, value)[6:], own, f" at the cost of {cost:g} ({steps} steps)")
        )
    return made
