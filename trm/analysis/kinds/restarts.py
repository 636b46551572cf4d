"""`restarts`: puzzles solved by several attempts, by how these differ, measured and predicted from half of them, and by
one pass of as many steps."""

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
    """Left: solved, one colour a policy; marks are measured, dashed lines predicted. Right: what as many steps again
    solve, which tells whether a pass has a memory that new attempts have not."""

    kind: Literal["restarts"] = "restarts"
    reading: ClassVar[str] = (
        "left: puzzles solved by at least one attempt (marks; dashed: predicted from half of them) and by one pass "
        "(black) against all steps taken; right: the chance of a puzzle unsolved so far when the steps are doubled"
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
    def hazard(self) -> list[stats.Mean]:
        """Chance that a puzzle unsolved so far is solved when the steps are doubled, [n - 1]; a pass that loses more
        answers than it finds: 0."""
        chances = np.diff(self.shares, axis=1) / np.maximum(1 - self.shares[:, :-1], 1e-9)
        return [stats.mean(np.maximum(0.0, values)).clipped(0.0, 1.0) for values in chances.T]


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
    wide: Curve
    """Of 1, 2, 4, ... attempts."""
    deep: Curve
    """Of one pass of as many steps, as far as it was measured."""

    @property
    def worth(self) -> stats.Mean:
        """Attempts that solve as many as the longest pass, up to those made: geometric mean, interval over seeds."""
        made = np.log2(self.wide.steps / self.steps)
        pairs = zip(self.deep.shares[:, -1], self.wide.shares)
        found = stats.mean([float(np.interp(share, row, made)) for share, row in pairs]).clipped(
            0.0, made[-1]
        )
        bounds = found.bounds and (float(2 ** found.bounds[0]), float(2 ** found.bounds[1]))
        return stats.Mean(float(2**found.value), bounds, found.n)


def law_of(rows: pd.DataFrame, passes: pd.DataFrame) -> Law:
    """The law of one policy's attempts, beside its passes. UserError: no number of attempts and its half were both
    counted."""
    from trm.analysis.fits.restarts import any_of, drawn, fit_attempts

    counts: dict[int, list[Any]] = {
        int(k): [json.loads(text) for text in part.sort_values("seed")["solved_counts"]]
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

    steps, chain = int(rows["eval_steps"].iloc[0]), 2 ** np.arange(16)
    deep = (
        passes.pivot_table("exact_accuracy", "seed", "eval_steps").reindex(columns=steps * chain).to_numpy()
    )
    reached = int(np.logical_and.accumulate(np.isfinite(deep).all(axis=0)).sum())
    made = chain[chain <= whole]

    def at(item: Any) -> float:
        return float(item.solved(np.array([float(whole)]))[0])

    return Law(
        steps,
        whole // 2,
        whole,
        stats.share([any_of(own)[-1] for own in counts[whole]], puzzles),
        summary(at(fitted), [at(item) for item in refits]),
        summary(fitted.rate, [item.rate for item in refits]),
        summary(fitted.correlation, [item.correlation for item in refits]),
        fitted.solved(later.astype(float)),
        Curve(steps * made, np.array([any_of(own)[made - 1] for own in counts[whole]])),
        Curve(steps * chain[:reached], deep[:, :reached]),
    )


def laws_of(table: Table, spec: Any) -> tuple[pd.DataFrame, str | None, dict[Any, Law]]:
    """The rows shown, the column of the policies, and the law of each. UserError: no evaluation counted restarts."""
    if "solved_counts" not in table.rows:
        raise UserError(
            f"no evaluation of {table.experiment} counted what restarts solve: set evaluation.restarts"
        )
    rows, passes = (  # grid points differ in their evaluation
        table.select({**spec.where, "policy": policy}, ["label"]) for policy in ("restarts", "fixed")
    )
    rows = rows[rows["solved_counts"].notna()]
    key = spec.hue or ("label" if rows["label"].nunique() > 1 else None)
    # what a pass depends on: a run's policies share it, but for those with views
    same = [*passes.filter(regex=r"^(run|evaluation\.(weights|average|view_.*|test_puzzles))$")]
    laws = {
        value: law_of(part, passes.merge(part[same].drop_duplicates()))
        for value, part in common.groups(rows, key).items()
    }
    return pd.concat([rows, passes], ignore_index=True), key, laws


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    rows, key, laws = laws_of(tables[0], spec)
    figure, axes = common.panels(2, 3.0)
    panel(axes[0], laws)
    _hazards(axes[1], laws)
    common.legend(figure, entries(axes[0], laws, key), 3)
    return common.Drawing(
        figure,
        rows,
        title="What more attempts solve, and what a longer pass",
        caption=(
            "Marks: puzzles solved by at least one of k attempts, the mean over their orders; the last with its 95 % "
            "interval over seeds and test puzzles. Dashed: the beta-binomial law of two numbers, the chance of one "
            "attempt and the correlation between two, fitted to half of the attempts. Black: one pass of as many "
            "steps. Right: the chance that a puzzle unsolved so far is solved when the steps are doubled, with 95 % "
            "intervals over seeds. New attempts remember nothing; a line that falls below the marks is a pass that is "
            "held where it has got to. "
        ),
        claims=claims(laws, key),
        remarks=_cost(laws),
    )


def panel(axes: Axes, laws: Mapping[Any, Law]) -> None:
    """Solved against all steps taken, measured and predicted, one colour a policy."""
    for index, (value, colour) in enumerate(common.colours(list(laws)).items()):
        law, marker = laws[value], common.MARKERS[index % 8]
        steps = law.steps * np.arange(1, len(law.curve) + 1)
        style: dict[str, Any] = {"linestyle": common.DASHES[1], "linewidth": 1.1, "zorder": 3}
        axes.plot(steps, law.curve, color=colour, **style)
        axes.plot(
            law.wide.steps, law.wide.shares.mean(axis=0), marker, color=colour, markersize=4.2, zorder=4
        )
        bounds = law.measured.bounds or (law.measured.value,) * 2
        axes.plot([steps[law.whole - 1]] * 2, bounds, color=colour, linewidth=1.1)
    for index, curve in enumerate(passes(laws).values()):
        line: dict[str, Any] = {"color": "black", "linestyle": common.DASHES[2 * index % 4], "linewidth": 1.1}
        axes.plot(curve.steps, curve.shares.mean(axis=0), **line)
    places = np.array([law.steps * 2.0**power for law in laws.values() for power in range(8)])
    common.axis_scale(axes, "x", Label("supervision steps in all", log=True), np.unique(places))
    common.axis_scale(axes, "y", label("solved"), log=False)
    axes.set_ylabel("Solved (%)")
    axes.set_ylim(top=min(1.02, axes.get_ylim()[1]))


def passes(laws: Mapping[Any, Law]) -> dict[Any, Curve]:
    """The passes that differ and were measured beyond one attempt, by the first policy that has each."""
    found = dict[Any, Curve]()
    for value, law in laws.items():
        if len(law.deep.steps) > 1 and not any(
            np.array_equal(law.deep.shares, c.shares) for c in found.values()
        ):
            found[value] = law.deep
    return found


def entries(axes: Axes, laws: Mapping[Any, Law], key: str | None) -> list[Any]:
    """Entries of a legend: the policies, then the passes."""
    made = []
    for index, (value, colour) in enumerate(common.colours(list(laws)).items() if key else ()):
        style = {"marker": common.MARKERS[index % 8], "linestyle": "none"}
        made.append(common.entry(axes, common.hue_name(str(key), value), color=colour, **style))
    for index, value in enumerate(passes(laws)):
        name = f"one pass, {common.hue_name(str(key), value)}" if index else "one pass"
        made.append(common.entry(axes, name, color="black", linestyle=common.DASHES[2 * index % 4]))
    return made


def _cost(laws: Mapping[Any, Law]) -> str:
    last, first = max(((int(c.steps[-1]), int(c.steps[0])) for c in passes(laws).values()), default=(0, 1))
    return f"The longest pass has {last} steps and costs as much as {last // first} attempts." if last else ""


def _hazards(axes: Axes, laws: Mapping[Any, Law]) -> None:
    """What as many steps again solve of the rest: of each policy, and of one pass."""
    lines = [
        (law.wide, colour, "none", common.MARKERS[index % 8])
        for index, (law, colour) in enumerate(zip(laws.values(), common.colours(list(laws)).values()))
    ]
    lines += [
        (curve, "black", common.DASHES[2 * index % 4], "")
        for index, curve in enumerate(passes(laws).values())
    ]
    for curve, colour, dash, marker in lines:
        places, hazard = curve.steps[:-1], curve.hazard
        heights = [item.value for item in hazard]
        axes.plot(places, heights, color=colour, linestyle=dash, marker=marker, markersize=4.2, linewidth=1.1)
        low, high = zip(*(item.bounds or (item.value,) * 2 for item in hazard))
        axes.vlines(places, low, high, color=colour, linewidth=0.7, alpha=0.5)
    common.axis_scale(
        axes,
        "x",
        Label("supervision steps so far", log=True),
        np.concatenate([c.steps[:-1] for c, *_ in lines]),
    )
    common.axis_scale(axes, "y", label("hazard"), log=False)
    axes.set_ylabel("Solved of the rest by as many again (%)")
    axes.set_ylim(0, 1)


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
    for value, law in laws.items():
        if len(law.deep.steps) > 1:
            more = " or more" * int(law.worth.value >= law.whole)
            found.append(level("pass_worth", hued(key, value)[6:], law.worth, more))
    return found


def missed(laws: Mapping[Any, Law]) -> float:
    """The largest miss of a prediction, as a share."""
    return max(abs(law.measured.value - law.predicted.value) for law in laws.values())
