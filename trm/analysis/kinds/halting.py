"""`halting`: when the model believes it is done, that is, the first supervision step with a positive halt logit."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trm.analysis.findings import Finding, level
from trm.analysis.labels import Label
from trm.analysis.lazy import Table, common, mpl, np, stats
from trm.analysis.specs import Figure
from trm.analysis.words import setting_in_words
from trm.errors import UserError


class Spec(Figure):
    """Distribution of the halting step by grid point."""

    kind: Literal["halting"] = "halting"
    reads: ClassVar[tuple[str, ...]] = ("halting",)
    reading: ClassVar[str] = "at which supervision step the model first says that it is done"


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Left: share of test puzzles by step. Right: cumulative share, with the exact accuracy as a mark at its end."""
    import seaborn as sns

    table = tables[0]
    rows = table.select(spec.where)
    rows = rows.assign(_halting=[table.extra("halting", row) for _, row in rows.iterrows()])
    rows = rows[rows["_halting"].map(bool)]
    if not len(rows):
        raise UserError(f"no evaluation of {table.experiment} recorded when puzzles halt")
    key = common.varied(None, table, rows) or "label"
    parts = common.groups(rows, key)
    shades = common.colours(list(parts))
    figure, axes = common.panels(2, 2.6)
    found: list[Finding] = []
    halted: list[Finding] = []
    for index, (value, part) in enumerate(parts.items()):
        steps, share = _mean(list(part["_halting"]))
        style = {"color": shades[value], "linestyle": common.DASHES[index % 4]}
        axes[0].plot(steps, share, marker="o", markersize=2.6, **style)
        sns.ecdfplot(x=steps, weights=share, stat="count", ax=axes[1], **style)
        exact = part["exact_accuracy"].mean()
        axes[1].plot(steps[-1], exact, "D", color=shades[value], clip_on=False, zorder=5)
        mean = stats.mean([_steps(item) for item in part["_halting"]])
        found.append(level("mean_steps", setting_in_words(key, value), mean, f" of {steps[-1]}"))
        shares = [sum(item["share"]) for item in part["_halting"]]
        halted.append(
            level("halted", setting_in_words(key, value), stats.share(shares, float(part["puzzles"].iloc[0])))
        )
    for axis, text in zip(axes, ("test puzzles halting at this step", "test puzzles halted by this step")):
        common.axis_scale(axis, "x", Label("supervision step"), log=False)
        common.axis_scale(axis, "y", Label(text, percent=True), log=False)
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(8, integer=True, steps=[1, 2, 4, 8, 10]))
    axes[1].set_ylim(0, 1.02)
    common.heading(axes[1], "Diamonds: exact accuracy at the last step")
    caption = "Share of test puzzles whose halt logit first becomes positive at a step."
    early = any(sum(item["share"][:-1]) for item in rows["_halting"])
    never = (
        "Puzzles that never halt count as the last step."
        if early
        else "None does before the last step: every puzzle takes all steps."
    )
    common.hue_legend(figure, key if len(parts) > 1 else None, shades, dashed=True)
    return common.Drawing(
        figure, rows, title="When the model stops", caption=f"{caption} {never}", findings=[*found, *halted]
    )


def _mean(halting: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean share by step over runs; runs with fewer steps count zero beyond theirs."""
    most = max(max(item["steps"]) for item in halting)
    shares = np.zeros((len(halting), most))
    for row, item in zip(shares, halting):
        row[np.array(item["steps"], int) - 1] = item["share"]
    return np.arange(1, most + 1), shares.mean(axis=0)


def _steps(item: dict[str, Any]) -> float:
    """Mean steps of a run that stops at the first positive halt logit."""
    steps, share = np.array(item["steps"], float), np.array(item["share"], float)
    return float((steps * share).sum() + max(0.0, 1 - share.sum()) * steps.max())
