"""`recurrence`: what a block that is applied r times is worth in parameters, by several laws."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trm.analysis.claims import Claim, level
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Table, common, np, stats
from trm.analysis.specs import Figure, Metric
from trm.analysis.words import estimate, listed, sentence
from trm.errors import UserError


class Spec(Figure):
    """Left: error against N r^phi. Right: how well each law fits with each phi (arXiv 2604.21106)."""

    kind: Literal["recurrence"] = "recurrence"
    reading: ClassVar[str] = (
        "right: how much worse a law fits with another worth phi of a recurrence; where the curves have their minima "
        "at one place, phi is known"
    )
    y: Metric = "cross_entropy"


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    from trm.analysis.fits import recurrence

    rows = common.rows_of(tables[0], spec.where, spec.y, "parameters", "train_flops")
    rows = rows.assign(recurrences=rows["model.h_cycles"] * (rows["model.l_cycles"] + 1))
    if rows["recurrences"].nunique() < 3 or rows["parameters"].nunique() < 3:
        raise UserError(
            f"{tables[0].experiment} has fewer than three sizes or numbers of recurrences: add grid points"
        )
    group = rows["point"].to_numpy()
    columns = ("parameters", "recurrences", "training_rows", "train_flops")
    size, times, offered, flops = (rows.groupby("point")[name].mean().to_numpy(float) for name in columns)
    logs = recurrence.drawn(np.log(rows[spec.y].to_numpy(float)), group, rows["seed"].to_numpy())
    points = recurrence.Points(size, times, offered, flops, logs)
    found = recurrence.worth(points)
    figure, axes = common.panels(2, 3.2)
    best = min(found.values(), key=lambda item: item.aicc)
    shades = common.colours(sorted(set(points.recurrences)))
    size, measured = points.size(best.phi), np.exp(points.log_y[0])
    for index in range(points.budget.max() + 1):
        for value, colour in shades.items():
            own = (points.budget == index) & (points.recurrences == value)
            axes[0].plot(size[own], measured[own], common.MARKERS[index % 8], color=colour, markersize=4)
    common.axis_scale(axes[0], "x", Label(f"N r$^φ$, φ = {best.phi:.2f}", log=True), size)
    common.axis_scale(axes[0], "y", label(spec.y), measured)
    for index, (name, item) in enumerate(found.items()):
        style = {"color": common.OKABE_ITO[index], "linestyle": common.DASHES[index % 4]}
        axes[1].plot(recurrence.PHI, item.profile, label=name, **style)
    for rival in recurrence.RIVALS:
        axes[1].axvline(rival, color=common.GREY, linewidth=0.7, linestyle=":", zorder=1)
    axes[1].set_ylim(0, 40)
    common.axis_scale(axes[1], "x", Label("worth φ of a recurrence"), log=False)
    common.axis_scale(axes[1], "y", Label("AICc above the least of the law"), log=False)
    handles = [
        common.entry(axes[0], f"r = {value:g}", color=colour, marker="o", linestyle="none")
        for value, colour in shades.items()
    ]
    common.legend(figure, [*handles, *axes[1].get_legend_handles_labels()[0]], 4)
    return common.Drawing(
        figure,
        rows.drop(columns="recurrences"),
        title="What a recurrence is worth",
        caption=(
            "Left: every grid point (mean of the seeds, one mark a budget) against N r^φ with φ of the law of the "
            "lowest AICc. Right: AICc of each law with φ held at a value. Dotted: φ = 0 (recurrence buys nothing but "
            "its compute), 0.46 (language models) and 1 (as good as blocks of their own). "
        ),
        claims=[claim(found)],
        remarks=remarks(found),
    )


def claim(found: dict[str, Any]) -> Claim:
    """phi with the span of all laws' intervals, or that they do not agree."""
    lows, highs = zip(*(item.interval for item in found.values()))
    values = [item.phi for item in found.values()]
    if not max(lows) <= min(highs):
        why = f"by law it is {listed([f'{estimate(item.phi)} ({name})' for name, item in found.items()])}"
        return level("recurrence_worth", "", stats.Mean(float("nan"), None, 0), why)
    return level(
        "recurrence_worth",
        "",
        stats.Mean(float(np.median(values)), (min(lows), max(highs)), len(values)),
        f" by {len(values)} laws",
    )


def remarks(found: dict[str, Any]) -> str:
    """What the rivals cost in fit and in prediction."""
    parts = []
    for name, item in found.items():
        text = f"{sentence(name)}: φ = {estimate(item.phi, item.interval)}"
        rivals = [f"{worse:.0f} with {rival}" for rival, worse in item.rivals.items()]
        text += f", AICc above its own by {listed(rivals)}"
        if item.held_out:
            own, *others = (f"{value:.2f}" for value in item.held_out.values())
            text += f"; it misses the largest budget by {own} in log error, with those φ by {listed(others)}"
        parts.append(text + ".")
    return " ".join(parts)
