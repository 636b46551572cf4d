"""`restarts`: puzzles solved by several attempts, by how these differ, measured and predicted from half of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trm.analysis.claims import Claim, level, verdict_on
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure
from trm.analysis.words import count, hued, measured
from trm.errors import UserError

DRAWS = 100
"""Resampled sets of puzzles behind an interval."""


class Spec(Figure):
    """One colour a policy; marks are measured, dashed lines predicted."""

    kind: Literal["restarts"] = "restarts"
    reading: ClassVar[str] = (
        "puzzles solved by at least one attempt against all steps taken; dashed: predicted from half of the attempts"
    )
    hue: Column | None = None
    """One policy for each value; null: the grid points."""


@dataclass(frozen=True)
class Law:
    """The restart law of one policy, fitted to half of its attempts."""

    steps: int
    """Of one attempt."""
    half: int
    whole: int
    measured: stats.Mean
    """Solved by the whole, with the interval over seeds and puzzles."""
    predicted: stats.Mean
    rate: stats.Mean
    correlation: stats.Mean
    curve: Any
    """Shares solved by 1, 2, ... 4 x whole attempts, predicted."""
    shares: Any
    """Shares solved by 1, 2, ... whole attempts, measured."""


def law_of(rows: pd.DataFrame) -> Law:
    """The law of one policy's rows. UserError: no number of attempts and its half were both counted."""
    from trm.analysis.fits.restarts import any_of, drawn, fit_attempts

    counts: dict[int, list[Any]] = {
        int(k): [json.loads(text) for text in part["solved_counts"]]
        for k, part in stats.by_number(rows, "restarts")
    }
    pairs = [k for k in counts if k % 2 == 0 and k // 2 in counts and k > 2]
    if not pairs:
        raise UserError(
            "restarts were counted for no number and its half: set evaluation.restarts, such as [4, 8]"
        )
    whole = max(pairs)
    half, puzzles = np.sum(counts[whole // 2], axis=0), float(np.sum(counts[whole][0]))
    fitted, refits = fit_attempts(half), drawn(half, DRAWS)
    later = np.arange(1, 4 * whole + 1)

    def summary(value: float, draws: list[float]) -> stats.Mean:
        low, high = stats.percentiles(np.array(draws), 0.95)
        return stats.Mean(value, (float(low), float(high)), len(counts[whole]))

    def at(item: Any) -> float:
        return float(item.solved(np.array([float(whole)]))[0])

    return Law(
        int(rows["eval_steps"].iloc[0]),
        whole // 2,
        whole,
        stats.share([any_of(own)[-1] for own in counts[whole]], puzzles),
        summary(at(fitted), [at(item) for item in refits]),
        summary(fitted.rate, [item.rate for item in refits]),
        summary(fitted.correlation, [item.correlation for item in refits]),
        fitted.solved(later.astype(float)),
        any_of(np.sum(counts[whole], axis=0)),
    )


def attempts(table: Table, spec: Any) -> tuple[pd.DataFrame, str | None]:
    """The rows that count what attempts solve, and the column of the policies. UserError: no evaluation counted it."""
    if "solved_counts" not in table.rows:
        raise UserError(
            f"no evaluation of {table.experiment} counted what restarts solve: set evaluation.restarts"
        )
    rows = table.select(
        {**spec.where, "policy": "restarts"}, ["label"]
    )  # grid points differ in their evaluation
    rows = rows[rows["solved_counts"].notna()]
    return rows, spec.hue or ("label" if rows["label"].nunique() > 1 else None)


def laws_of(table: Table, spec: Any) -> tuple[pd.DataFrame, str | None, dict[Any, Law]]:
    """The rows shown, the column of the policies, and the law of each. UserError: no evaluation counted restarts."""
    rows, key = attempts(table, spec)
    return rows, key, {value: law_of(part) for value, part in common.groups(rows, key).items()}


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    rows, key, laws = laws_of(tables[0], spec)
    figure, axes = common.panels(1, 3.0)
    panel(axes[0], laws)
    common.hue_legend(figure, key, common.colours(list(laws)))
    return common.Drawing(
        figure,
        rows,
        title="What more attempts solve",
        caption=(
            "Marks: puzzles solved by at least one of k attempts, the mean over their orders; the last with its 95 % "
            "interval over seeds and test puzzles. Dashed: the beta-binomial law of two numbers, the chance of one "
            "attempt and the correlation between two, fitted to half of the attempts. "
        ),
        claims=claims(laws, key),
    )


def panel(axes: Axes, laws: Mapping[Any, Law]) -> None:
    """Solved against all steps taken, measured and predicted, one colour a policy."""
    for index, (value, colour) in enumerate(common.colours(list(laws)).items()):
        law, marker = laws[value], common.MARKERS[index % 8]
        steps = law.steps * np.arange(1, len(law.curve) + 1)
        style: dict[str, Any] = {"linestyle": common.DASHES[1], "linewidth": 1.1, "zorder": 3}
        axes.plot(steps, law.curve, color=colour, **style)
        axes.plot(steps[: law.whole], law.shares, marker, color=colour, markersize=4.2, zorder=4)
        bounds = law.measured.bounds or (law.measured.value,) * 2
        axes.plot([steps[law.whole - 1]] * 2, bounds, color=colour, linewidth=1.1)
    places = np.array([law.steps * 2.0**power for law in laws.values() for power in range(6)])
    common.axis_scale(axes, "x", Label("supervision steps of all attempts", log=True), np.unique(places))
    common.axis_scale(axes, "y", label("solved"), log=False)
    axes.set_ylabel("Solved by any attempt (%)")  # the whole name is longer than the panel
    axes.set_ylim(top=min(1.02, axes.get_ylim()[1]))


def claims(laws: Mapping[Any, Law], key: str | None) -> list[Claim]:
    """What half of the attempts predict of all, and how alike attempts are."""
    found = []
    for value, law in laws.items():
        known = f"measured: {measured('solved', law.measured.value)}"
        what = f"{count(law.half, 'attempt')}{hued(key, value)} predict for {law.whole} a"
        bounds, at = law.predicted.bounds, law.measured.value
        verdict = verdict_on(bounds, at) if bounds else "single"
        found.append(Claim("solved", what, known, law.predicted.value, bounds, verdict, "prediction"))
    for name, field in (("restart_rate", "rate"), ("restart_correlation", "correlation")):
        found += [level(name, hued(key, value)[6:], getattr(law, field)) for value, law in laws.items()]
    return found


def missed(laws: Mapping[Any, Law]) -> float:
    """The largest miss of a prediction, as a share."""
    return max(abs(law.measured.value - law.predicted.value) for law in laws.values())
