"""`curves`: learning curves of every seed and their mean; right of them, training against unseen puzzles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.labels import HISTORY, Label
from trm.analysis.lazy import Axes, Table, common, mpl, np, pd
from trm.analysis.specs import Column, Figure
from trm.analysis.words import number, percent, place, point_name, points, sentence
from trm.errors import UserError

AXES = {
    "step": Label("training step"),
    "rows": Label("offered training puzzles"),
    "seconds": Label("training time", "s"),
    "flops": Label("training compute", "FLOPs"),
}
MOST = 12
"""Most grid points with a colour each."""
LEAST_SPAN = 0.2
"""Least width of the axis of accuracies on which training and test are compared."""


class Spec(Figure):
    """One panel for each history column, and one for the train-test gap."""

    kind: Literal["curves"] = "curves"
    reading: ClassVar[str] = (
        "every seed faint, their mean strong; right of it training against unseen puzzles"
    )
    metric: str = "eval/exact_accuracy"
    """Column of history.csv."""
    hue: Column | None = None
    """Colour; null: the grid points."""
    against: Literal["step", "rows", "seconds", "flops"] = "step"
    """The x axis."""
    gap: bool = True
    """A panel with training and test accuracy of the finished runs."""
    metrics: tuple[str, ...] = ()
    """Further history columns, one panel each (train/loss, train/grad_norm)."""


def curves_sentence(ends: Mapping[Any, tuple[float, int]], names: Mapping[Any, str], text: Label) -> str:
    """Best and worst at the end of training. ends: group -> (mean, seeds)."""
    ranked = sorted(ends, key=lambda key: ends[key][0])

    def show(key: Any) -> str:
        return percent(ends[key][0]) if text.percent else f"{number(ends[key][0])} {text.unit}".rstrip()

    if len(ranked) == 1:
        return f"At the end of training, {text.name} is {show(ranked[0])}."
    low, high = ranked[0], ranked[-1]
    ends_at = f"{show(low)} ({names[low]}) and {show(high)} ({names[high]})"
    return f"At the end of training, {text.name} is between {ends_at}."


def gap_sentence(gaps: Mapping[str, tuple[float, float]]) -> str:
    """The widest gap between puzzles trained on and unseen ones. gaps: name -> (train, test) accuracy."""
    known = {name: train - test for name, (train, test) in gaps.items() if train == train and test == test}
    if not known:
        return ""
    widest = max(known, key=known.__getitem__)
    if known[widest] <= 0:
        return " No grid point solves more of its training puzzles than of unseen ones."
    size = points(known[widest], sign=False)
    text = f" Training puzzles are solved {size} more often than unseen ones"
    return f"{text}, at most (for {widest})." if len(known) > 1 else f"{text}."


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """All panels."""
    table = tables[0]
    rows = table.select(spec.where, [spec.hue] if spec.hue else [])
    key = common.varied(spec, table, rows) or "label"
    if key == "label" and rows["label"].nunique() > MOST:
        key = next(iter(common.differing(table, rows)), key)
    parts = common.groups(rows, key)
    names = {value: point_name(value) if key == "label" else place(key, value) for value in parts}
    shades = common.colours(list(parts))
    columns = [spec.metric, *spec.metrics]
    for column in columns:
        if column not in table.curves:
            raise UserError(f"no history of {table.experiment} has a column {column}")
    gap = spec.gap and bool(rows["train_exact_accuracy"].notna().any())
    figure, axes = common.panels(len(columns) + gap, 2.5)
    ends = [_panel(axis, table, parts, shades, column, spec) for axis, column in zip(axes, columns)]
    if gap:
        _gap(axes[-1], parts, shades)
    common.hue_legend(figure, key if len(parts) > 1 else None, shades, marker=None, linestyle="-")
    text = HISTORY.get(spec.metric, Label(spec.metric))
    words = curves_sentence(ends[0], names, text)
    words += _guesses(axes[0], table, rows) if spec.metric == "eval/blank_accuracy" else ""
    words += _filling(axes[0], table, rows) if spec.metric == "eval/exact_accuracy" else ""
    if gap:
        words += gap_sentence({names[value]: _accuracies(part) for value, part in parts.items()})
    return common.Drawing(
        figure,
        rows,
        title=sentence(text.name) + ("" if text.name.startswith("training") else " in training"),
        caption=(
            "Thin lines: seeds. Thick lines: their mean at the same place. Validation puzzles are disjoint, up to "
            "symmetry, from training and test puzzles."
            + gap
            * " Last panel: exact accuracy of the finished runs on training and on test puzzles."
        ),
        sentence=words,
        numbers={"final": {names[k]: v[0] for k, v in ends[0].items()}},
    )


def _panel(
    axes: Axes,
    table: Table,
    parts: Mapping[Any, pd.DataFrame],
    shades: dict[Any, str],
    column: str,
    spec: Spec,
) -> dict[Any, tuple[float, int]]:
    """Curves of one history column; returns the mean last value of each group and its number of seeds."""
    text = HISTORY.get(column, Label(column.replace("/", " ").replace("_", " ")))
    histories = dict(iter(table.curves.groupby("run", sort=False)))
    ends: dict[Any, tuple[float, int]] = {}
    seen: list[np.ndarray] = []
    ran: list[np.ndarray] = []
    for value, part in parts.items():
        known = [histories[run].dropna(subset=[column]) for run in part["run"] if run in histories]
        lines = [
            (run[spec.against].to_numpy(float), run[column].to_numpy(float)) for run in known if len(run)
        ]
        if not lines:
            continue
        for x, level in lines:
            axes.plot(x, level, color=shades[value], alpha=0.3, linewidth=0.6)
            seen.append(level)
            ran.append(x)
        axes.plot(*_mean(lines), color=shades[value], linewidth=1.5)
        ends[value] = (float(np.mean([level[-1] for _, level in lines])), len(lines))
    if not seen:
        raise UserError(f"no run of {table.experiment} measured {column}: the figure would be empty")
    common.axis_scale(axes, "x", AXES[spec.against], np.concatenate(ran), log=False)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    common.axis_scale(axes, "y", text, np.concatenate(seen))
    return ends


def _mean(lines: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of several curves on the first one's places, over the range that all of them cover."""
    low, high = max(place[0] for place, _ in lines), min(place[-1] for place, _ in lines)
    grid = lines[0][0]
    grid = grid[(grid >= low) & (grid <= high)]
    if not len(grid):
        return lines[0]
    return grid, np.mean([np.interp(grid, place, level) for place, level in lines], axis=0)


def _level(axes: Axes, level: float, name: str, dashes: Any) -> None:
    """A named horizontal line; its name at the right, where rising curves leave room."""
    axes.axhline(level, color=common.GREY, linestyle=dashes, linewidth=0.8)
    common.note(
        axes, name, (0.98, level), (0, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom"
    )


def _guesses(axes: Axes, table: Table, rows: pd.DataFrame) -> str:
    """Levels of blind guessing, and a sentence that compares the held-out accuracy with them (mean over runs; 95 %
    interval over puzzles, normal approximation)."""
    known = [
        guess for guess in table.info.get("guess", {}).values() if guess and guess.get("rules") is not None
    ]
    if not known:
        return ""
    uniform, rules = (float(np.mean([guess[key] for guess in known])) for key in ("uniform", "rules"))
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
    best = max(rows.groupby("point")["exact_accuracy"], key=lambda item: item[1].mean())[1]
    shown = common.mean_of(best, "exact_accuracy")
    return (
        f" Without learning, filling dead ends solves {percent(float(np.mean(known)))} of the test mazes; the "
        f"model solves {percent(shown.value, shown.bounds)}"
        + (" at the best point." if rows["point"].nunique() > 1 else ".")
    )


def _accuracies(part: pd.DataFrame) -> tuple[float, float]:
    return float(part["train_exact_accuracy"].mean()), float(part["exact_accuracy"].mean())


def _gap(axes: Axes, parts: Mapping[Any, pd.DataFrame], shades: dict[Any, str]) -> None:
    """Training (hollow) and test (filled) accuracy of each group, joined by a line whose length is the gap."""
    for at, (value, part) in enumerate(parts.items()):
        trained, tested = _accuracies(part)
        style: dict[str, Any] = {"color": shades[value], "zorder": 3}
        axes.plot([tested, trained], [at, at], color=shades[value], linewidth=1.2, zorder=2)
        axes.plot(
            part["exact_accuracy"], [at + 0.18] * len(part), "o", alpha=0.4, markersize=2.6, mew=0, **style
        )
        axes.plot(trained, at, "o", markerfacecolor="white", markersize=5.5, **style)
        axes.plot(tested, at, "o", markersize=3.2, **style)
    common.heading(axes, "Trained on and unseen")
    axes.set_yticks([])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    low, high = axes.get_xlim()
    if high - low < LEAST_SPAN:  # a difference within the noise must not fill the panel
        middle = min(max((low + high) / 2, LEAST_SPAN / 2), 1.02 - LEAST_SPAN / 2)
        axes.set_xlim(middle - LEAST_SPAN / 2, middle + LEAST_SPAN / 2)
    text = Label("exact accuracy: test ●  training ○", percent=True)
    common.axis_scale(axes, "x", text, log=False)
    axes.grid(axis="y", visible=False)
