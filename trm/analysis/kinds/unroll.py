"""`unroll`: accuracy against the number of supervision steps at test time, by group: what recursion does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.claims import Claim, claims
from trm.analysis.labels import label
from trm.analysis.lazy import Table, common, np, stats
from trm.analysis.specs import Column, Figure
from trm.analysis.words import percent, place, points, sentence
from trm.errors import UserError


class Spec(Figure):
    """One curve for each value of `hue`, also beyond the number of steps in training."""

    kind: Literal["unroll"] = "unroll"
    reading: ClassVar[str] = (
        "accuracy after each number of supervision steps; the dotted line is the number in training"
    )
    hue: Column | None = None
    """One curve for each value; null: the only coordinate, or the grid point."""
    marked: bool = True
    """A dotted line at the number of steps in training, if it is the same for all."""


def unroll_sentence(
    name: str, means: Mapping[float, stats.Mean], best: float, gain: Claim | None, puzzles: float = 0
) -> str:
    """One curve in words.

    Args:
        name: of the curve.
        means: steps -> accuracy.
        best: the steps of the highest accuracy.
        gain: `best` steps less the fewest, in pairs of seeds, if established.
        puzzles: test puzzles, where there is one seed: the test set's own interval takes the place of the seeds'.
    """
    head = f"{name}: " if name else ""
    first, last = min(means), max(means)
    if puzzles:
        low, high = (stats.wilson(means[at].value * puzzles, puzzles) for at in (first, best))
        if high[0] > low[1]:
            return (
                f"{head or 'In the only run, '}accuracy rises from {percent(means[first].value, low)} at {first:g} "
                f"step{'' if first == 1 else 's'} to {percent(means[best].value, high)} at {best:g} (binomial "
                f"intervals of {int(puzzles):,} test puzzles; one seed says nothing about others)."
            )
    if gain is None:
        ends = f"{percent(means[first].value)} at {first:g}, {percent(means[best].value)} at {best:g}"
        return f"{head}no gain from more supervision steps is established ({ends})."

    def shown(steps: float) -> str:
        return percent(means[steps].value, means[steps].bounds)

    text = (
        f"{head or 'Exact '}accuracy rises from {shown(first)} at {first:g} step{'' if first == 1 else 's'} to "
        f"{shown(best)} at {best:g} ({points(gain.value, gain.interval)})"
    )
    return text + (f", and is {shown(last)} at {last:g}." if last > best else ".")


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel."""
    table = tables[0]
    rows = common.rows_of(table, spec.where, "exact_accuracy", "eval_steps", spec.hue)
    if rows["eval_steps"].nunique() < 2:
        raise UserError(f"{table.experiment} was evaluated at one number of steps: set evaluation.unroll")
    key = common.varied(spec, table, rows)
    parts = common.groups(rows, key)
    shades = common.colours(list(parts))
    figure, axes = common.panels(1, 3.0)
    steps = np.sort(rows["eval_steps"].unique().astype(float))
    shifts = common.dodge(len(parts), float(np.log(steps[-1] / steps[0])), 0.008)
    sentences, strengths, numbers, found = [], [], {}, list[Claim]()
    for index, (value, part) in enumerate(parts.items()):
        series = {
            at: here.groupby("seed")["exact_accuracy"].mean()
            for at, here in stats.by_number(part, "eval_steps")
        }
        means = {at: common.mean_of(values, "exact_accuracy") for at, values in series.items()}
        marker, shift = common.MARKERS[index % 8], shifts[index]
        tested = float(part["puzzles"].iloc[0])
        for at, values in series.items():
            common.binomial_bar(axes[0], at * shift, means[at].value, tested)
            beside = {"seeds_at": 0.96 * at * shift, "summary": means[at]}
            common.seed_marks(axes[0], at * shift, values, shades[value], marker, **beside)
        axes[0].plot(
            np.array(list(means)) * shift,
            [m.value for m in means.values()],
            color=shades[value],
            linewidth=1.1,
        )
        first = min(means)
        best = max(means, key=lambda at: means[at].value)
        changes = {at: stats.paired(series[first], series[at]) for at in series if at != first}
        name = place(key, value) if key else ""
        made = claims(
            "exact_accuracy", f"{name}, {first:g}" if name else f"{first:g}", changes, "{:g} steps".format
        )
        gain = made.get(best)
        found.extend(made.values())
        alone = tested if part["seed"].nunique() == 1 else 0
        sentences.append(
            sentence(unroll_sentence(name, means, best, gain if gain and gain.sign else None, alone))
        )
        numbers[str(value)] = {str(at): mean.value for at, mean in means.items()}
        strengths.append(gain.strength if gain else 0.0)
    trained = rows["model.halt_max_steps"].unique()
    if spec.marked and len(trained) == 1:
        axes[0].axvline(float(trained[0]), color=common.GREY, linewidth=0.8, linestyle=":", zorder=1)
        common.note(
            axes[0], "trained with", (float(trained[0]), 0.0), (2, 3), xycoords=("data", "axes fraction")
        )
    common.axis_scale(axes[0], "x", label("eval_steps"), steps)
    common.axis_scale(axes[0], "y", label("exact_accuracy"), log=False)
    axes[0].set_ylim(-0.02, 1.02)
    common.hue_legend(figure, key, shades, linestyle="-")
    return common.Drawing(
        figure,
        rows,
        title="Accuracy by supervision steps at test time",
        caption=(
            "The same trained models, unrolled for different numbers of supervision steps. Faint: seeds; mean with "
            "Student's 95 % interval; grey: binomial 95 % interval of the test set. Dotted: as many steps as in "
            "training. Gains over the fewest steps are tested "
            "on pairs of equal seeds, corrected by Holm's method."
        ),
        sentence=" ".join(sentences),
        answer=sentences[int(np.argmax(strengths))],
        strength=max(strengths) or None,
        claims=found,
        numbers={"accuracy": numbers},
    )
