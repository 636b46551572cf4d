"""`restarts`: puzzles solved by several attempts, measured and predicted from a few of them, and what each way to
choose among the attempts keeps of that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trm.analysis.findings import Finding, level, prediction
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure
from trm.analysis.words import count, percent, setting_in_words
from trm.errors import UserError

DRAWS = 60
"""Resampled sets of seeds behind an interval."""
CHOOSERS = {"oracle": "any", "majority": "vote", "restarts": "halt logit", "residual": "residual"}
"""Policy -> the way to choose among attempts; `any` counts a puzzle that one of them solves."""


PICKED = {
    "any": "any of",
    "vote": "a vote of",
    "halt logit": "the halt logit among",
    "residual": "the residual among",
}
"""Policies as a sentence names them."""


def attempts_of(where: Mapping[str, Any]) -> str:
    """`any of 8 attempts` for settings with a policy and its number of attempts; empty for others."""
    chooser = CHOOSERS.get(where.get("policy", "")) if "restarts" in where else None
    return f"{PICKED[chooser]} {where['restarts']} attempts" if chooser else ""


class Spec(Figure):
    """Left: solved by any attempt, one colour a policy. Right: by the attempt that is chosen."""

    kind: Literal["restarts"] = "restarts"
    reading: ClassVar[str] = (
        "left: puzzles that at least one attempt solves, measured (marks) and predicted from a few (dotted); right: "
        "puzzles solved by the attempt that a vote or the model's own trust, the halt logit, chooses"
    )
    hue: Column | None = None
    """One policy for each value; null: the grid points."""


@dataclass(frozen=True)
class Law:
    """What the attempts of one policy solve, and what a few of them predict."""

    few: int
    """Attempts that the law is fitted to."""
    whole: int
    places: Any
    """Numbers of attempts that were counted [n]."""
    shares: Any
    """Solved by any of so many, by seed [seeds, n]."""
    measured: stats.Mean
    """Solved by any of the whole, with the interval over seeds and puzzles."""
    predicted: stats.Mean
    rival: float
    """The prediction that every doubling solves the same share of the rest."""
    rate: stats.Mean
    correlation: stats.Mean
    curve: Any
    """Solved by 1, 2, ... whole attempts, by the law."""
    chosen: dict[str, stats.Mean]
    """Solved by the attempt chosen among the whole, by CHOOSERS."""
    once: stats.Mean | None
    """Solved by one pass of as many steps; None: it was not measured."""


def law_of(rows: pd.DataFrame, every: pd.DataFrame) -> Law:
    """The law of one policy. rows: with its counts; every: all of its points' rows. UserError: too few numbers of
    attempts were counted."""
    from trm.analysis.fits.restarts import around, drawn, fit_attempts, same_share

    counts: dict[int, list[Any]] = {
        int(k): [np.array(json.loads(text)) for text in part.sort_values("seed")["solved_counts"]]
        for k, part in stats.by_number(rows, "restarts")
    }
    whole = max(counts)
    known = [k for k in counts if 1 < k <= max(4, whole // 8) and k < whole]
    if not known:
        raise UserError(
            "restarts were counted for no number and its double: set evaluation.restarts, such as [4, 8]"
        )
    few, puzzles, seeds = max(known), float(counts[whole][0].sum()), len(counts[whole])
    firsts = counts.get(1, [np.zeros(2)] * seeds)
    first = np.sum(firsts, axis=0) if 1 in counts else None
    fitted = fit_attempts(np.sum(counts[few], axis=0), first)
    refits = drawn(counts[few], firsts, DRAWS) if seeds > 1 and 1 in counts else []

    def summary(value: float, draws: list[float]) -> stats.Mean:
        return stats.Mean(value, around(value, draws, seeds) if draws else None, seeds)

    def at(item: Any) -> float:
        return float(item.solved(np.array([float(whole)]))[0])

    places = np.array([k for k in counts if k <= whole and k & (k - 1) == 0])
    last = every[every["restarts"] == whole]
    chosen = {name: last[last["policy"] == policy] for policy, name in CHOOSERS.items()}
    steps = int(rows["eval_steps"].iloc[0])
    passes = every[(every["policy"] == "fixed") & (every["eval_steps"] == steps * whole)]
    return Law(
        few,
        whole,
        places,
        np.array([1 - np.array([own[0] / own.sum() for own in counts[k]]) for k in places]).T,
        stats.share([1 - own[0] / own.sum() for own in counts[whole]], puzzles),
        summary(at(fitted), [at(item) for item in refits]),
        same_share(np.sum(counts[few], axis=0), whole),
        summary(fitted.rate, [item.rate for item in refits]),
        summary(fitted.correlation, [item.correlation for item in refits]),
        fitted.solved(np.arange(1.0, whole + 1)),
        {name: stats.share(part["exact_accuracy"], puzzles) for name, part in chosen.items() if len(part)},
        stats.share(passes["exact_accuracy"], puzzles) if len(passes) else None,
    )


def laws_of(table: Table, spec: Any) -> tuple[pd.DataFrame, str | None, dict[Any, Law]]:
    """The rows shown, the column of the policies, and the law of each. UserError: no evaluation counted restarts."""
    if "solved_counts" not in table.rows:
        raise UserError(
            f"no evaluation of {table.experiment} counted what restarts solve: set evaluation.restarts"
        )
    policies = ("fixed", *CHOOSERS)
    every = pd.concat([table.select({**spec.where, "policy": name}, ["label"]) for name in policies])
    rows = every[(every["policy"] == "restarts") & every["solved_counts"].notna()]
    key = spec.hue or ("label" if rows["label"].nunique() > 1 else None)
    parts = common.groups(every, key)
    laws = {value: law_of(part, parts[value]) for value, part in common.groups(rows, key).items()}
    return every.reset_index(drop=True), key, laws


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    rows, key, laws = laws_of(tables[0], spec)
    figure, axes = common.panels(2, 2.8)
    panel(axes[0], laws, key, named=not key)
    _choosers(axes[1], laws, key)
    titles = (common.wrap(message(laws, key), 40), "Which attempt is chosen")
    common.aligned_headings([*zip(axes, titles)])
    common.hue_legend(figure, key, common.colours(list(laws)))
    few = next(iter(laws.values())).few
    return common.Drawing(
        figure,
        rows,
        title="What more attempts solve",
        caption=f"Left: puzzles that any attempt solves; dotted: predicted from {few}; grey: one pass of equal cost.",
        findings=findings(laws, key),
    )


def _name(key: str | None, value: Any) -> str:
    return common.hue_name(key, value) if key else "attempts"


def panel(axes: Axes, laws: Mapping[Any, Law], key: str | None, *, named: bool = True) -> None:
    """Solved by any of the attempts, measured and predicted, one colour a policy, `named` at its end."""
    ends = []
    for index, (value, colour) in enumerate(common.colours(list(laws)).items()):
        law, marker = laws[value], common.MARKERS[index % 8]
        means = law.shares.mean(axis=0)
        for place, mean in zip(law.places, means):
            face = colour if place <= law.few else "white"
            axes.plot(place, mean, marker, color=colour, markerfacecolor=face, markersize=4.2, zorder=4)
        many = np.arange(1, len(law.curve) + 1)
        axes.plot(many[: law.few], law.curve[: law.few], color=colour, linewidth=1.1, zorder=3)
        axes.plot(
            many[law.few - 1 :],
            law.curve[law.few - 1 :],
            color=colour,
            linestyle=":",
            linewidth=1.3,
            zorder=3,
        )
        axes.plot(
            [law.whole] * 2, law.measured.bounds or [law.measured.value] * 2, color=colour, linewidth=1.1
        )
        if named:
            ends.append((law.whole, law.measured.value, _name(key, value), colour))
    first = next(iter(laws.values()))
    if first.once:
        axes.plot([1, first.whole], [first.once.value] * 2, color=common.GREY, linewidth=1.1, zorder=2)
        ends.append((first.whole, first.once.value, "one long pass", common.GREY))
    common.axis_scale(
        axes,
        "x",
        Label("attempts", log=True),
        np.unique(np.concatenate([law.places for law in laws.values()])),
    )
    common.axis_scale(axes, "y", label("solved"), log=False)
    axes.set_ylabel("Solved by any attempt (%)")
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(1.02, high))
    if ends:
        last = max(law.whole for law in laws.values())
        common.end_names(axes, [(last, *end[1:]) for end in ends])


def _choosers(axes: Axes, laws: Mapping[Any, Law], key: str | None) -> None:
    """Solved by each way to choose, a line a policy."""
    names = [name for name in CHOOSERS.values() if any(name in law.chosen for law in laws.values())]
    for index, (value, colour) in enumerate(common.colours(list(laws)).items()):
        for at, name in enumerate(names):
            if found := laws[value].chosen.get(name):
                place = at + (index - (len(laws) - 1) / 2) * min(0.22, 0.8 / len(laws))
                common.seed_marks(
                    axes,
                    place,
                    [found.value],
                    colour,
                    common.MARKERS[index % 8],
                    summary=found,
                    sideways=True,
                )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    common.axis_scale(axes, "x", label("solved"), log=False)
    axes.set_xlabel("Solved (%)")
    axes.grid(axis="y", visible=False)


def message(laws: Mapping[Any, Law], key: str | None) -> str:
    """The takeaway: the policy whose attempts solve most, if there are several."""
    best = max(laws, key=lambda value: laws[value].measured.value)
    by = f" by {_name(key, best)}" if key else ""
    return f"{laws[best].whole} attempts{by} solve {percent(laws[best].measured.value)}"


def findings(laws: Mapping[Any, Law], key: str | None) -> list[Finding]:
    """What the attempts solve by each chooser, what a few and the rival predict, and how alike attempts are."""
    found = []
    for value, law in laws.items():
        place = setting_in_words(key, value) if key else ""
        what, measured = count(law.few, "attempt"), law.measured.value
        for name, mean in law.chosen.items():
            found.append(level("solved", f"{PICKED[name]} {law.whole} attempts", mean, place=place))
        own = law.predicted
        found.append(prediction("solved", what, measured, own.value, own.bounds, place))
        name = f"equal shares of the rest, from {what},"
        found.append(prediction("solved", name, measured, law.rival, None, place))
        found.append(level("restart_rate", "", law.rate, place=place))
        found.append(level("restart_correlation", "", law.correlation, place=place))
    return found
