"""`curves`: learning curves of every seed and their mean; right of them, training against unseen puzzles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.findings import level
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Axes, Table, common, mpl, np, pd, stats
from trm.analysis.specs import Figure
from trm.analysis.words import percent, point_name, sentence, setting_in_words
from trm.errors import UserError

AXES = {
    "step": Label("training step"),
    "rows": Label("offered training puzzles"),
    "flops": Label("training compute", "FLOPs"),
}
MOST = 12
"""Most grid points with a colour each."""
LEAST_SPAN = 0.2
"""Least width of the axis of accuracies on which training and test are compared."""


class Spec(Figure):
    """One panel for a history column, and one for the train-test gap."""

    kind: Literal["curves"] = "curves"
    reads: ClassVar[tuple[str, ...]] = ("curves", "guess")
    reading: ClassVar[str] = (
        "every seed faint, their mean strong; right of it training against unseen puzzles"
    )
    metric: str = "eval/exact_accuracy"
    """Column of history.csv."""
    against: Literal["step", "rows", "flops"] = "step"
    """The x axis."""

    @property
    def histories(self) -> tuple[str, ...]:
        return (self.metric,)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    table = tables[0]
    rows = table.select(spec.where)
    key = common.varied(None, table, rows) or "label"
    if key == "label" and rows["label"].nunique() > MOST:
        key = next(iter(common.differing(table, rows)), key)
    parts = common.groups(rows, key)
    names = {value: point_name(value) if key == "label" else setting_in_words(key, value) for value in parts}
    names = names if len(parts) > 1 else dict.fromkeys(parts, "")
    shades = common.colours(list(parts))
    if spec.metric not in table.curves:
        raise UserError(f"no history of {table.experiment} has a column {spec.metric}")
    gap = bool(rows["train_exact_accuracy"].notna().any())
    figure, axes = common.panels(1 + gap, 2.5)
    ends = _panel(axes[0], table, rows, key, shades, spec)
    if gap:
        _gap(axes[-1], parts, shades)
    common.hue_legend(figure, key if len(parts) > 1 else None, shades, marker=None, linestyle="-")
    words = _guesses(axes[0], table, rows) if spec.metric == "eval/blank_accuracy" else ""
    words += _filling(axes[0], table, rows) if spec.metric == "eval/exact_accuracy" else ""
    findings = [
        level(spec.metric, names[value], mean, place="the end of training") for value, mean in ends.items()
    ]
    for value, part in parts.items() if gap else ():
        findings.append(level("train_test_gap", names[value], stats.mean(part["train_test_gap"])))
    name = label(spec.metric).name
    return common.Drawing(
        figure,
        rows,
        title=sentence(name) + ("" if name.startswith("training") else " in training"),
        caption="Thin: seeds; thick: their mean"
        + "; validation after Nsup steps" * spec.metric.startswith("eval/")
        + "."
        + gap
        * " Second panel, after the test steps: exact accuracy on training (bar) and test puzzles (dot).",
        findings=findings,
        remarks=words,
    )


def _panel(
    axes: Axes, table: Table, rows: pd.DataFrame, key: str, shades: dict[Any, str], spec: Spec
) -> dict[Any, stats.Mean]:
    """Curves of every run, and the mean of each grid point; returns the last values by colour."""
    import seaborn as sns

    curves = table.curves[["run", "step", *{spec.against, spec.metric} - {"step"}]].dropna()
    shown = rows[["run", "point"]].assign(hue=rows[key].astype("object").where(rows[key].notna(), None))
    frame = curves.merge(shown, on="run")
    if not len(frame):
        raise UserError(f"no run of {table.experiment} measured {spec.metric}: the figure would be empty")
    frame["shade"] = frame["hue"].map(shades)
    measured = list({spec.against, spec.metric} - {"step"})
    means = frame.groupby(["point", "shade", "step"], as_index=False)[measured].mean()
    style: dict[str, Any] = {"x": spec.against, "y": spec.metric, "hue": "shade", "estimator": None}
    style |= {"legend": False, "palette": {shade: shade for shade in shades.values()}}
    sns.lineplot(frame, units="run", alpha=0.3, linewidth=0.6, ax=axes, **style)
    sns.lineplot(means, units="point", linewidth=1.5, ax=axes, **style)
    common.axis_scale(axes, "x", AXES[spec.against], frame[spec.against], log=False)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    common.axis_scale(axes, "y", label(spec.metric), frame[spec.metric])
    last = frame.sort_values("step").groupby("run").last()
    exact, puzzles = spec.metric == "eval/exact_accuracy", float(rows["data.validation_puzzles"].max())
    summary = (lambda values: stats.share(values, puzzles)) if exact else stats.mean
    return {value: summary(part[spec.metric]) for value, part in common.groups(last, "hue").items()}


def _level(axes: Axes, height: float, name: str, dashes: Any) -> None:
    """A named horizontal line; its name at the right, where rising curves leave room."""
    axes.axhline(height, color=common.GREY, linestyle=dashes, linewidth=0.8)
    common.note(
        axes, name, (0.98, height), (0, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom"
    )


def _guesses(axes: Axes, table: Table, rows: pd.DataFrame) -> str:
    """Levels of blind guessing, and a sentence that compares the held-out accuracy with them (mean over runs; 95 %
    interval over puzzles, normal approximation)."""
    known = [item for item in table.info.get("guess", {}).values() if item and item.get("rules") is not None]
    if not known:
        return ""
    uniform, rules = (float(np.mean([item[key] for item in known])) for key in ("uniform", "rules"))
    _level(axes, uniform, "uniform guess", common.DASHES[2])
    _level(axes, rules, "guess among the rules' candidates", common.DASHES[1])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9 * uniform), max(high, 1.1 * rules))
    mean, error = float(rows["blank_accuracy"].mean()), float(rows["blank_error"].astype(float).mean())
    bounds = (mean - 1.96 * error, mean + 1.96 * error) if error == error else None
    return (
        f" On blank cells of held-out puzzles {percent(mean, bounds)} are right; a uniform guess gets "
        f"{percent(uniform)}, a guess among the candidates that row, column and box leave {percent(rules)}."
    )


def _filling(axes: Axes, table: Table, rows: pd.DataFrame) -> str:
    """Mazes: the exact accuracy of filling dead ends."""
    known = [guess["exact"] for guess in table.info.get("guess", {}).values() if guess and "exact" in guess]
    if not known:
        return ""
    _level(axes, float(np.mean(known)), "filling dead ends", common.DASHES[1])
    best = max(rows.groupby("point"), key=lambda item: item[1]["exact_accuracy"].mean())[1]
    shown = common.mean_of(best["exact_accuracy"], "exact_accuracy", float(best["puzzles"].iloc[0]))
    return (
        f" Without learning, filling dead ends solves {percent(float(np.mean(known)))} of the test mazes; the "
        f"model solves {percent(shown.value, shown.bounds)}"
        + (" at the best point." if rows["point"].nunique() > 1 else ".")
    )


def _gap(axes: Axes, parts: Mapping[Any, pd.DataFrame], shades: dict[Any, str]) -> None:
    """Training (bar) and test (dot) accuracy of each group, joined by a line whose length is the gap."""
    for at, (value, part) in enumerate(parts.items()):
        trained, tested = part[["train_exact_accuracy", "exact_accuracy"]].astype(float).mean()
        style: dict[str, Any] = {"color": shades[value], "zorder": 3}
        axes.plot([tested, trained], [at, at], color=shades[value], linewidth=1.2, zorder=2)
        if len(part) > 1:
            small = {"alpha": 0.4, "markersize": 2.6, "mew": 0, **style}
            axes.plot(part["exact_accuracy"], [at + 0.18] * len(part), "o", **small)
        axes.plot(trained, at, "|", markersize=8, mew=1.6, **style)
        axes.plot(tested, at, "o", markersize=4.2, **style)
    common.heading(axes, "Trained on and unseen")
    axes.set_yticks([])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    low, high = axes.get_xlim()
    if high - low < LEAST_SPAN:  # a difference within the noise must not fill the panel
        middle = min(max((low + high) / 2, LEAST_SPAN / 2), 1.02 - LEAST_SPAN / 2)
        axes.set_xlim(middle - LEAST_SPAN / 2, middle + LEAST_SPAN / 2)
    text = Label("exact accuracy: test ●  training ❘", percent=True)
    common.axis_scale(axes, "x", text, log=False)
    axes.grid(axis="y", visible=False)
