"""Shared by all kinds of figures: what they return, canvas, colours, axes, marks, legends."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from trm.analysis import stats
from trm.analysis.findings import Finding
from trm.analysis.labels import Label, label
from trm.analysis.scales import BinaryLocator, fitting, round_values
from trm.analysis.scales import nice as nice
from trm.analysis.scales import panel_width as panel_width
from trm.analysis.scales import shown as shown
from trm.analysis.specs import FitSpec
from trm.analysis.stats import Mean
from trm.analysis.tables import Table
from trm.analysis.tables import merge as merge
from trm.analysis.words import listed, point_name, setting_in_words, value_name
from trm.errors import UserError

ONE, TWO = 4.6, 7.0
"""Widths in inches of figures with one panel and with several. The report shows all at one scale."""
OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES: Sequence[Any] = ("-", (0, (4, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Line styles for lines that overlap."""
GREY = "#767676"
MISSING = "#B00020"
SMALL = 8
"""Font size of every note inside a figure; the style file sets the others."""
LETTER = 0.07
"""About how many inches a letter of a legend is wide."""
LONGEST = 44
"""Letters of a line in a legend."""


@dataclass
class Drawing:
    """A figure and what the report says about it."""

    canvas: Canvas
    rows: pd.DataFrame
    """Rows of the tables that it shows."""
    title: str
    """Used if the spec names none."""
    caption: str
    """What the marks mean, and how the numbers were computed."""
    findings: Sequence[Finding] = ()
    """What the figure shows."""
    remarks: str = ""
    """Sentences besides the findings."""
    lines: str = ""
    """Small lines under the heading."""
    carried: int | None = None
    """Number of runs behind the fitted line; None: there is no line."""
    sentence: str = field(default="", init=False)
    """The answer, further findings and remarks; written by `finish`, like the next two."""
    answer: str = ""
    """The finding that answers the figure's question, in one sentence."""
    strength: float | None = field(default=None, init=False)
    """Size of the main effect over half the width of its 95 % interval; below 1 or None: no effect is claimed."""
    provenance: dict[str, str] = field(default_factory=dict, init=False)


# data --------------------------------------------------------------------------------------------------------------


def fit_of(fits: Sequence[dict[str, Any]], spec: FitSpec) -> dict[str, Any]:
    """The content of the fit.json made for `spec`. UserError: it was not given."""
    wanted = spec.model_dump(mode="json")
    for fit in fits:
        if fit.get("spec") == wanted:
            return fit
    raise UserError(
        f"no --fit was made for {spec.form} of {spec.y} against {spec.x} in {listed(spec.experiments)}: "
        "run `python -m trm fit` with that spec"
    )


def rows_of(table: Table, where: Mapping[str, Any], metric: str, *columns: str | None) -> pd.DataFrame:
    """The selected rows in which `metric` was measured, if they have these other columns too. UserError: none, or a
    column is missing."""
    rows = table.select(where, [name for name in (*columns, metric) if name])
    rows = rows[pd.to_numeric(rows[metric], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"{table.experiment} has no measurement of {metric}: the figure would be empty")
    return rows


def varied(hue: str | None, table: Table, rows: pd.DataFrame) -> str | None:
    """The column of the colours: `hue`, else the one coordinate that differs, else the grid point.

    None: nothing differs.
    """
    found = differing(table, rows)
    if len(found) == 1 and rows[found[0]].astype(str).str.startswith("[").any():
        found.append("")  # stages of a curriculum: the point's own words say more
    return hue or (found[0] if len(found) == 1 else "label" if found else None)


def differing(table: Table, rows: pd.DataFrame) -> list[str]:
    """The grid's coordinates that differ between rows."""
    return [name for name in table.info.get("coordinates", []) if rows[name].nunique(dropna=False) > 1]


def with_hue(spec: Any, table: Table, *taken: str) -> Any:
    """The spec with the hue that its table needs beside the columns `taken`, if it names none."""
    return spec if spec.hue else spec.model_copy(update={"hue": table.implied_hue(spec.where, *taken)})


def ordered(values: pd.Series) -> list[Any]:
    """Distinct values: numbers rising, words in the order of the grid."""
    distinct = list(pd.unique(values.astype("object").where(values.notna(), None)))
    numbers = [value for value in distinct if isinstance(value, (int, float, np.number))]
    if len(numbers) == len([value for value in distinct if value is not None]):
        return [None] * (None in distinct) + sorted(numbers)
    return distinct


def is_value(column: pd.Series, value: Any) -> pd.Series:
    """Rows of a column equal to one of `ordered`'s values."""
    return column.isna() if value is None else column == value


def groups(rows: pd.DataFrame, column: str | None) -> dict[Any, pd.DataFrame]:
    """Value -> its rows, in order; one entry, None, if there is no column."""
    if not column:
        return {None: rows}
    return {value: rows[is_value(rows[column], value)] for value in ordered(rows[column])}


def positive(rows: pd.DataFrame, metric: str) -> np.ndarray:
    """Values for a log axis [N]: a run without an error is shown at half a test puzzle."""
    values = rows[metric].to_numpy(float)
    if metric != "error":
        return values
    return np.where(values > 0, values, 0.5 / rows["puzzles"].to_numpy(float))


# canvas, legends, footer -------------------------------------------------------------------------------------------


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Canvas, np.ndarray]:
    """A figure with axes [rows, columns], `height` inches tall; a legend comes below (`settle`)."""
    figure = Canvas(figsize=(width, height), layout=ConstrainedLayoutEngine())
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def settle(figure: Canvas, height: float) -> None:
    """Stack legends below the axes, which take `height` inches."""
    below = 0.06
    for found in figure.legends:
        size = found.get_window_extent(figure.canvas.get_renderer()).height / figure.dpi  # type: ignore[attr-defined]
        found.set_bbox_to_anchor((0.5, below / (height + below + size)), figure.transFigure)
        below += size
    figure.set_figheight(height + below)
    share = below / (height + below)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0.004, share, 0.992, 1.0 - share - 0.01)))


def panels(number: int, height: float, **options: Any) -> tuple[Canvas, np.ndarray]:
    """`number` panels, at most three in a row; returns the figure and the axes in use [number]."""
    columns = 2 if number == 4 else min(3, number)
    rows = -(-number // columns)
    width = ONE if columns == 1 else TWO if columns == 2 else 2.75 * columns
    figure, axes = canvas(width, height * rows, rows, columns, **options)
    for axis in axes.flat[number:]:
        axis.set_axis_off()
    return figure, axes.flat[:number]


def legend(figure: Canvas, handles: Sequence[Any], columns: int, title: str = "") -> None:
    """A legend below the axes."""
    spaces = {"columnspacing": 1.4, "labelspacing": 0.25, "borderaxespad": 0.1}
    found = figure.legend(handles=handles, loc="lower center", ncols=columns, title=title or None, **spaces)
    found.set_in_layout(False)


def entry(axes: Axes, name: str, **style: Any) -> Any:
    """A legend entry that draws nothing."""
    return axes.plot([], [], label=name, **style)[0]


def hue_legend(
    figure: Canvas,
    column: str | None,
    shades: Mapping[Any, str],
    handles: Sequence[Any] = (),
    *,
    columns: int = 0,
    dashed: bool = False,
    **style: Any,
) -> None:
    """The legend of a hue; nothing without a column.

    Args:
        shades: value -> colour; each is shown with its mark.
        handles: entries to show instead.
        columns: entries beside each other; 0: as many as fit.
        dashed: show lines, each with its dashes, instead of marks.
        style: of all entries.
    """
    if not column:
        return
    narrow = figure.get_figwidth() <= ONE
    most = 2 if column in ("series", "label") else 3 if narrow else 6
    drawn = [
        entry(figure.axes[0], hue_name(column, value), color=colour, **(_mark(i, dashed) | style))
        for i, (value, colour) in enumerate(shades.items())
    ]
    entries = handles or drawn
    longest = max(len(line) for item in entries for line in str(item.get_label()).split("\n"))
    fit = max(1, min(most, int(figure.get_figwidth() / (0.5 + LETTER * longest))))
    legend(figure, entries, columns or fit, legend_title(column))


def _mark(index: int, dashed: bool) -> dict[str, Any]:
    if dashed:
        return {"linestyle": DASHES[index % 4]}
    return {"marker": MARKERS[index % 8], "linestyle": "none"}


def plain(text: str) -> str:
    """Text of a study for matplotlib, which takes what stands between dollar signs for mathematics."""
    return text.replace("$", r"\$")


def hue_name(column: str, value: Any) -> str:
    """A legend entry: the value alone; `legend_title` names the column."""
    if column == "series":
        name = setting_in_words(column, value)
    elif column == "experiment":  # an experiment named after what it varies
        name = label(f"model.{value}").name
    else:
        name = value_name(value, column) if column != "label" else point_name(value)
    return plain(wrap(name, LONGEST))


def legend_title(column: str) -> str:
    """The quantity whose values a legend lists; empty if the entries speak for themselves."""
    return "" if column in ("label", "series") else "varied" if column == "experiment" else label(column).name


def heading(axes: Axes, title: str, lines: str = "") -> None:
    """A bold title with small lines under it, above the axes and outside the layout."""
    below = lines.count("\n") + 1 if lines else 0
    axes.set_title(title, pad=6 + 1.32 * SMALL * below)
    if lines:
        style = {"xycoords": "axes fraction", "color": "#333333", "va": "bottom", "linespacing": 1.15}
        note(axes, lines, (0, 1), (0, 4), **style)


def aligned_headings(headings: Sequence[tuple[Axes, str]]) -> None:
    """Headings (axes, title) that begin at one height in each row of panels."""
    for axes, title in headings:
        top = axes.get_position().y1
        most = max(text.count("\n") for other, text in headings if other.get_position().y1 == top)
        heading(axes, title + "\n" * (most - title.count("\n")))


def note(
    axes: Axes, text: str, xy: tuple[float, float], offset: tuple[float, float] = (0, 0), **style: Any
) -> None:
    """A small note `offset` points away from a place, outside the layout."""
    options = {"textcoords": "offset points", "fontsize": SMALL, "color": GREY, "zorder": 6, **style}
    axes.annotate(text, xy, xytext=offset, **options).set_in_layout(False)


def absent(axes: Axes, text: str) -> None:
    """Why a panel is empty, in its middle."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "color": MISSING}
    axes.text(0.5, 0.5, wrap(text, 34), transform=axes.transAxes, **style)
    axes.set_axis_off()


def end_names(axes: Axes, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Names right of the ends of lines (x, y, name, colour) on a logarithmic x axis, pushed apart from the top down so
    that none lies on another."""
    figure, grid = axes.get_figure(root=True), axes.get_gridspec()
    assert figure is not None
    assert grid is not None
    low, high = axes.get_ylim()
    step = 1.3 * SMALL / 72 / (0.6 * figure.get_figheight() / grid.nrows) * (high - low)
    at = high + 0.3 * step
    for x, y, name, colour in sorted(ends, key=lambda end: -end[1]):
        at = min(at - step, y)
        note(axes, name, (x, at), (7, 0), color=colour, va="center", fontweight="bold")
    make_room(axes, [name for *_, name, _ in ends])


def make_room(axes: Axes, names: Sequence[str]) -> None:
    """Widen a logarithmic x axis for bold names right of what it shows."""
    longest = max(len(line) for name in names for line in name.split("\n"))
    room = min(0.45, (5 + 0.62 * SMALL * longest) / 72 / panel_width(axes))
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** (room / (1 - room)))


def inside(axes: Axes, text: str) -> None:
    """A number in the upper right corner, where falling curves leave room."""
    note(axes, text, (0.98, 0.95), xycoords="axes fraction", ha="right", va="top", color="#333333")


# axes --------------------------------------------------------------------------------------------------------------


def colours(values: Sequence[Any]) -> dict[Any, str]:
    """A colour for each value: viridis for an ordered scale of more than two numbers, Okabe-Ito otherwise."""
    values = list(values)
    numeric = all(isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in values)
    if len(values) > 8 or (numeric and len(values) > 2):
        ramp = matplotlib.colormaps["viridis"]
        return {value: to_hex(ramp(0.86 * i / max(1, len(values) - 1))) for i, value in enumerate(values)}
    return {value: OKABE_ITO[i % len(OKABE_ITO)] for i, value in enumerate(values)}


def axis_scale(axes: Axes, which: str, text: Label, values: Any = (), *, log: bool | None = None) -> None:
    """Label and scale one axis for `values`. A log x axis with at most 9 distinct values has a tick at each of them."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(text.axis)
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    use_log = (text.log if log is None else log) and len(values) > 0 and bool((values > 0).all())
    if use_log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        own = np.unique(values)
        if which == "x" and len(own) == 1:  # else the margins make a range without a round number
            axes.set_xlim(own[0] / 2, own[0] * 2)
        low, high = (axes.get_xlim if which == "x" else axes.get_ylim)()
        if not (which == "x" and (len(own) == 1 or (len(own) <= 9 and round_values(own)))):
            own = np.array(nice(min(low, values.min()), max(high, values.max())))
        ticks = (
            fitting(axes, own, float(np.log(high / low)), lambda value: shown(text, value))
            if which == "x"
            else own
        )
        axis.set_major_locator(FixedLocator(list(ticks)))
    if text.binary and not use_log:
        axis.set_major_locator(BinaryLocator())
    if text.percent or text.binary or use_log or (len(values) and np.abs(values).max() >= 1e4):
        axis.set_major_formatter(FuncFormatter(lambda value, _: shown(text, value)))


def error_scale(axes: Axes, metric: str, low: float, high: float) -> None:
    """A log y axis around what was measured; an error ends at 100 %."""
    axes.set_yscale("log")
    axes.set_ylim(low / 1.6, min(high * 1.5, 1.15) if metric == "error" else high * 1.5)
    axis_scale(axes, "y", label(metric), np.array([low, high]))


def wrap(text: str, width: int) -> str:
    """Break a long line for a title or a tick label; words only where no line of a legend holds them."""
    split = max(map(len, text.split()), default=0) > max(width, LONGEST)
    return textwrap.fill(text, width, break_long_words=split, break_on_hyphens=False)


# marks -------------------------------------------------------------------------------------------------------------


def seed_marks(
    axes: Axes,
    at: float,
    values: Any,
    colour: str,
    marker: str = "o",
    *,
    seeds_at: float | None = None,
    sideways: bool = False,
    summary: Mean | None = None,
    hollow: bool = False,
) -> None:
    """Draw seeds faint and their mean strong with its interval.

    Args:
        at: place on the x axis; `sideways`: on the y axis.
        seeds_at: place of the seeds, if not that of the mean.
        summary: the mean; without one, that of the values with Student's interval.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    summary = summary or stats.mean(values)

    def line(places: Any, heights: Any, *style: Any, **options: Any) -> None:
        axes.plot(*((heights, places) if sideways else (places, heights)), *style, color=colour, **options)

    beside = at if seeds_at is None else seeds_at
    if len(values) > 1:
        line([beside] * len(values), values, marker, alpha=0.4, markersize=2.6, mew=0, zorder=3)
    if summary.bounds:
        line([at, at], summary.bounds, linewidth=1.1, zorder=4)
    face = "white" if hollow else colour
    line(at, summary.value, marker, markersize=4.2, markerfacecolor=face, zorder=5)


def binomial_bar(axes: Axes, x: float, share: float, puzzles: float) -> tuple[float, float]:
    """Draw the binomial 95 % interval of a share of the test puzzles as a grey bar, and return it."""
    bounds = stats.wilson(share * puzzles, puzzles)
    axes.plot([x, x], bounds, color="#c4c4c4", linewidth=3.2, solid_capstyle="butt", zorder=2)
    return bounds


def mean_of(values: Any, metric: str, puzzles: float = 0.0) -> Mean:
    """Mean with Student's interval, cut to the range of the metric. `puzzles`: whose share the values are, if they are;
    all seeds share their sampling error."""
    text = label(metric)
    if puzzles and metric in ("error", "exact_accuracy"):
        return stats.share(values, puzzles)
    low = 0.0 if text.percent or text.log else -np.inf
    return stats.mean(values).clipped(low, 1.0 if text.percent else np.inf)
