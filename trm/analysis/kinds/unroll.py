"""`unroll`: accuracy against the number of supervision steps at test time, by group: what recursion does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.findings import Finding, compared, contrast
from trm.analysis.labels import label
from trm.analysis.lazy import Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure
from trm.analysis.words import count, setting_in_words
from trm.errors import UserError


class Spec(Figure):
    """One curve for each value of `hue`, also beyond the number of steps in training."""

    kind: Literal["unroll"] = "unroll"
    reading: ClassVar[str] = (
        "accuracy after each number of supervision steps; the grey line is the number in training"
    )
    hue: Column | None = None
    """One curve for each value; null: the only coordinate, or the grid point."""


def gains(curves: Mapping[str, Mapping[float, pd.Series]]) -> list[Finding]:
    """The best number of steps of each curve against the fewest, the largest gain first. All numbers of steps are
    tested together, as the results choose the best. curves: name -> steps -> accuracy of each seed."""
    contrasts = {
        (name, at): contrast(series[min(series)], values, _steps(at), _steps(min(series)), name)
        for name, series in curves.items()
        for at, values in series.items()
        if at != min(series)
    }
    made, found = compared("exact_accuracy", contrasts), []
    for name, series in curves.items():
        best = max(series, key=lambda at: float(series[at].mean()))
        chosen = made.get((name, best)) or made.get((name, max(series)))
        found += [chosen] if chosen else []
    return sorted(found, key=lambda item: -item.value)


def _steps(number: float) -> str:
    return count(int(number), "supervision step")


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    table = tables[0]
    rows = common.rows_of(table, spec.where, "exact_accuracy", "eval_steps", spec.hue)
    if rows["eval_steps"].nunique() < 2:
        raise UserError(f"{table.experiment} was evaluated at one number of steps: set evaluation.unroll")
    key = common.varied(spec.hue, table, rows)
    parts = common.groups(rows, key)
    shades = common.colours(list(parts))
    figure, axes = common.panels(1, 3.0)
    steps = np.sort(rows["eval_steps"].unique().astype(float))
    curves: dict[str, dict[float, pd.Series]] = {}
    lost: list[str] = []
    for index, (value, part) in enumerate(parts.items()):
        part, left_out = table.alike(part, "eval_steps")
        lost.append(left_out)
        series = {
            at: here.groupby("seed")["exact_accuracy"].mean()
            for at, here in stats.by_number(part, "eval_steps")
        }
        tested = float(part["puzzles"].iloc[0])
        means = {at: common.mean_of(values, "exact_accuracy", tested) for at, values in series.items()}
        marker = common.MARKERS[index % 8]
        for at, values in series.items():
            common.binomial_bar(axes[0], at, means[at].value, tested)
            beside: dict[str, Any] = {"seeds_at": 0.96 * at, "summary": means[at]}
            common.seed_marks(axes[0], at, values, shades[value], marker, **beside)
        heights = [mean.value for mean in means.values()]
        axes[0].plot(np.array(list(means)), heights, color=shades[value], linewidth=1.1)
        place = setting_in_words(key, value) if key else ""
        place += " in training" * (key == "model.halt_max_steps")
        curves[place] = series
    trained = rows["model.halt_max_steps"].unique()
    if len(trained) == 1:
        style: dict[str, Any] = {"color": common.GREY, "linewidth": 0.8}
        axes[0].axvline(float(trained[0]), zorder=1, **style)
        common.legend(figure, [common.entry(axes[0], "steps in training", **style)], 1)
    common.axis_scale(axes[0], "x", label("eval_steps"), steps)
    common.axis_scale(axes[0], "y", label("exact_accuracy"), log=False)
    axes[0].set_ylim(-0.02, 1.02)
    common.hue_legend(figure, key, shades, linestyle="-")
    return common.Drawing(
        figure,
        rows,
        title="Accuracy by supervision steps at test time",
        caption=(
            "Each model is measured after several numbers of supervision steps. Faint: seeds. Bars: 95 % interval; "
            "grey: of the test set alone."
        ),
        findings=gains(curves),  # the largest gain is the answer
        remarks=" ".join(dict.fromkeys(filter(None, lost))),
    )
