"""Shared by all kinds of figures: style, canvas, colours, axes, marks, legends, footer, files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from trm.analysis import stats
from trm.analysis.claims import Claim
from trm.analysis.labels import Label, label
from trm.analysis.scales import BinaryLocator, crowded, legible, shown
from trm.analysis.scales import nice as nice
from trm.analysis.scales import panel_width as panel_width
from trm.analysis.specs import Figure, FitSpec
from trm.analysis.stats import Mean
from trm.analysis.tables import Table
from trm.analysis.tables import merge as merge
from trm.analysis.tables import reference as reference
from trm.analysis.words import count, listed, place, point_name, value_name
from trm.errors import UserError
from trm.io import dump, sha256_file, shipped, write_bytes, write_text

ONE, TWO = 4.6, 7.0
"""Widths in inches of figures with one panel and with several. The report shows all at one scale."""
STYLE = Path("config/figures.mplstyle")
OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES: Sequence[Any] = ("-", (0, (4, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Line styles for lines that overlap."""
GREY = "#767676"
MISSING = "#B00020"
SMALL = 6.5
"""Font size of every note inside a figure; the style file sets the others."""
EQUAL_COSTS = 0.02
"""Costs that differ by less, relative to each other, count as equal: wall times and memory vary that much."""
FOOT = 0.36
"""Inches kept free for the footer's two lines."""


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
    sentence: str
    """What the figure shows, from its numbers."""
    lines: str = ""
    """Small lines under the heading."""
    answer: str = ""
    """The same in one sentence, for the report's summary; empty: the sentence itself."""
    strength: float | None = None
    """Size of the main effect over half the width of its 95 % interval; below 1 or None: no effect is claimed."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the sentence."""
    claims: list[Claim] = field(default_factory=list)
    """The comparisons behind it."""
    carried: int | None = None
    """Runs that carry the fitted line; None: there is none."""
    provenance: dict[str, str] = field(default_factory=dict)


@contextmanager
def styled(path: str | Path | None = None) -> Iterator[None]:
    """Matplotlib's settings while drawing and saving. UserError: the style file is missing or invalid."""
    style = Path(path) if path else STYLE if STYLE.exists() else shipped(str(STYLE))
    if not style.exists():
        raise UserError(f"{style} does not exist: name the style file with --style")
    with matplotlib.rc_context():
        try:
            matplotlib.style.use(str(style))
        except OSError as error:
            raise UserError(f"{style} is not a matplotlib style file: {error}") from None
        yield


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
    """The selected rows in which `metric` was measured. UserError: none, or a column is missing."""
    rows = table.select(where, [name for name in (*columns, metric) if name])
    rows = rows[pd.to_numeric(rows[metric], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"{table.experiment} has no measurement of {metric}: the figure would be empty")
    return rows


def varied(spec: Any, table: Table, rows: pd.DataFrame) -> str | None:
    """The column of the colours: the spec's hue, else the one coordinate that differs, else the grid point.

    None: nothing differs.
    """
    found = differing(table, rows)
    if len(found) == 1 and rows[found[0]].astype(str).str.startswith("[").any():
        found.append("")  # stages of a curriculum: the point's own words say more
    return spec.hue or (found[0] if len(found) == 1 else "label" if found else None)


def differing(table: Table, rows: pd.DataFrame) -> list[str]:
    """The grid's coordinates that differ between rows."""
    return [name for name in table.info.get("coordinates", []) if rows[name].nunique(dropna=False) > 1]


def with_hue(spec: Any, table: Table, rows: pd.DataFrame, taken: Sequence[str]) -> Any:
    """The spec with the hue that its table needs, if it names none."""
    return spec if spec.hue else spec.model_copy(update={"hue": table.implied_hue(rows, taken)})


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
    """A figure with axes [rows, columns], `height` inches tall, above the footer."""
    figure = Canvas(figsize=(width, height + FOOT))
    FigureCanvasAgg(figure)
    _keep_free(figure, FOOT)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _keep_free(figure: Canvas, below: float) -> None:
    """Leave `below` inches under the axes."""
    share = below / figure.get_figheight()
    engine = ConstrainedLayoutEngine(rect=(0.004, share, 0.992, 1.0 - share - 0.01))
    figure.set_layout_engine(engine)


def panels(number: int, height: float, *, wide: int = 3, **options: Any) -> tuple[Canvas, np.ndarray]:
    """`number` panels, at most `wide` in a row; returns the figure and the axes in use [number]."""
    columns = 2 if number == 4 else min(wide, number)
    rows = -(-number // columns)
    width = ONE if columns == 1 else TWO if columns == 2 else 2.75 * columns
    figure, axes = canvas(width, height * rows, rows, columns, **options)
    for axis in axes.flat[number:]:
        axis.set_axis_off()
    return figure, axes.flat[:number]


def legend(figure: Canvas, handles: Sequence[Any], columns: int, title: str = "") -> None:
    """A legend between axes and footer; the figure grows by its height."""
    strip = 0.16 * (-(-len(handles) // columns) + bool(title)) + 0.06
    figure.set_figheight(figure.get_figheight() + strip)
    _keep_free(figure, FOOT + strip)
    found = figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, (FOOT - 0.06) / figure.get_figheight()),
        ncols=columns,
        title=title or None,
        columnspacing=1.4,
        labelspacing=0.25,
    )
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
    fit = 1 if column == "series" and narrow else 2 if column in ("series", "label") else 3 if narrow else 6
    drawn = [
        entry(figure.axes[0], hue_name(column, value), color=colour, **(_mark(i, dashed) | style))
        for i, (value, colour) in enumerate(shades.items())
    ]
    legend(figure, handles or drawn, columns or fit, legend_title(column))


def _mark(index: int, dashed: bool) -> dict[str, Any]:
    if dashed:
        return {"linestyle": DASHES[index % 4]}
    return {"marker": MARKERS[index % 8], "linestyle": "none"}


def hue_name(column: str, value: Any) -> str:
    """A legend entry: the value alone; `legend_title` names the column."""
    if column == "series":
        return wrap(place(column, value), 44)
    if column == "experiment":  # an experiment named after what it varies
        return label(f"model.{value}").name
    return value_name(value, column) if column != "label" else point_name(value)


def legend_title(column: str) -> str:
    """The quantity whose values a legend lists; empty if the entries speak for themselves."""
    return "" if column in ("label", "series") else "varied" if column == "experiment" else label(column).name


def heading(axes: Axes, title: str, lines: str = "") -> None:
    """A bold title with small lines under it, above the axes and outside the layout."""
    below = lines.count("\n") + 1 if lines else 0
    axes.set_title(title, pad=6 + 1.32 * SMALL * below)
    if lines:
        note(
            axes,
            lines,
            (0, 1),
            (0, 4),
            xycoords="axes fraction",
            color="#333333",
            va="bottom",
            linespacing=1.15,
        )


def note(
    axes: Axes, text: str, xy: tuple[float, float], offset: tuple[float, float] = (0, 0), **style: Any
) -> None:
    """A small note `offset` points away from a place, outside the layout."""
    options = {"textcoords": "offset points", "fontsize": SMALL, "color": GREY, "zorder": 6, **style}
    axes.annotate(text, xy, xytext=offset, **options).set_in_layout(False)


def finish(drawing: Drawing, spec: Figure, tables: Sequence[Table]) -> Drawing:
    """Add what every figure has: heading, footer, a note on missing files, an answer.

    Panels that have headings keep them. Of `tables`, those whose rows are shown count.
    """
    figure, shown = drawing.canvas, set(drawing.rows["experiment"])
    tables = [table for table in tables if table.experiment in shown]
    drawing.title = spec.title or drawing.title
    if not any(figure.axes[0].get_title(place) for place in ("left", "center")):
        heading(figure.axes[0], drawing.title, drawing.lines)
    facts = drawing.provenance = provenance(tables, drawing.rows)
    if drawing.carried not in (None, drawing.rows["run"].nunique()):
        facts["size"] += f" ({drawing.carried} carry the line)"
    width = int(figure.get_figwidth() * 72 / (0.56 * SMALL))
    items = [facts["study"], *(facts[key].replace(" ", "\u00a0") for key in ("size", "data", "commit"))]
    lines = wrap("\u00a0· ".join(items), width)
    figure.text(0.008, 0.012, lines, fontsize=SMALL, color=GREY, ha="left", va="bottom", linespacing=1.1)
    lost = sum(len(table.info.get("missing", [])) for table in tables)
    if lost:
        drawing.caption += f" Incomplete: {count(lost, 'file')} missing, the figure shows the rest."
        words = f"incomplete: {count(lost, 'file')} missing"
        figure.text(0.992, 0.995, words, fontsize=SMALL, color=MISSING, ha="right", va="top")
    drawing.caption, drawing.sentence = drawing.caption.strip(), drawing.sentence.strip()
    drawing.answer = drawing.answer or drawing.sentence
    return drawing


def provenance(tables: Sequence[Table], rows: pd.DataFrame) -> dict[str, str]:
    """The footer's words: study and scale, runs and seeds, data fingerprint, commit."""
    info = tables[0].info
    distinct = list(dict.fromkeys(table.experiment for table in tables))
    names = listed(distinct) if len(distinct) <= 4 else count(len(distinct), "experiment")
    commits = sorted({commit for table in tables for commit in table.info.get("commits", [])})
    runs = rows.drop_duplicates("run")
    points = rows[["experiment", "point"]].drop_duplicates().shape[0]
    shown = ", ".join(commits[:2]) + (f" and {len(commits) - 2} more" if len(commits) > 2 else "")
    # named after the measurements shown, not after the tables that hold them: equal data have one name everywhere
    keys = ["run", "split", "policy", "eval_steps", "restarts", "correct"]
    text = rows[keys].drop_duplicates().sort_values(keys).to_csv(index=False)
    return {
        "study": f"study {info.get('study')}, scale {info.get('scale')}: {names}",
        "size": f"{count(points, 'point')}, {count(len(runs), 'run')}, {count(runs['seed'].nunique(), 'seed')}",
        "data": f"data {hashlib.sha256(text.encode()).hexdigest()[:8]}",
        "commit": f"commit {shown or 'unknown'}",
    }


def save(drawing: Drawing, out: str | Path, origin: Mapping[str, Any] | None = None) -> list[Path]:
    """Write figure.pdf, .png and .json. The same inputs give the same bytes: no dates, fixed metadata.

    Args:
        origin: further entries of the JSON file, which hold what the figure was made from.
    """
    out = Path(out)
    subject = "; ".join(drawing.provenance.values())
    about = {
        "Title": drawing.title,
        "Subject": subject,
        "Keywords": drawing.sentence,
        "Creator": "trm.analysis",
    }
    dates = {"CreationDate": None, "ModDate": None}
    pdf, png = io.BytesIO(), io.BytesIO()
    drawing.canvas.savefig(pdf, format="pdf", metadata={**about, **dates})
    drawing.canvas.savefig(png, format="png", metadata={"Title": drawing.title, "Description": subject})
    files = [out, out.with_suffix(".png"), out.with_suffix(".json")]
    write_bytes(files[0], pdf.getvalue())
    write_bytes(files[1], png.getvalue())
    facts = words_of(drawing) | {"inches": drawing.canvas.get_figwidth(), "svg": _svg(drawing)}
    facts["narrow"] = _svg(drawing) if stack(drawing.canvas) else ""
    own = {"name": out.stem, "sha256": {file.suffix: sha256_file(file) for file in files[:2]}}
    write_text(files[2], dump({**facts, **own, **(origin or {})}))
    return files


def words_of(drawing: Drawing) -> dict[str, Any]:
    """Everything of a figure but its picture, for its JSON."""
    facts = {key: value for key, value in vars(drawing).items() if key not in ("canvas", "rows", "lines")}
    return {**facts, "claims": [claim.numbers for claim in drawing.claims]}


def _svg(drawing: Drawing) -> str:
    """The figure as an SVG element whose text is text, for the page."""
    buffer = io.StringIO()
    about = {"Title": drawing.title, "Description": drawing.sentence, "Date": None}
    salt = f"{drawing.title} {drawing.canvas.get_size_inches()}"  # names of clips and marks must differ in one page
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        drawing.canvas.savefig(buffer, format="svg", metadata=about)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def stack(figure: Canvas) -> bool:
    """Put panels that lie beside each other below each other, for a narrow screen; False: there are none.

    A figure with a panel outside its grid (a colour bar) stays as it is.
    """
    places = [spot for axes in figure.axes if (spot := axes.get_subplotspec())]
    cells = sorted({(spot.rowspan.start, spot.colspan.start) for spot in places})
    engine = figure.get_layout_engine()
    if len(places) < len(figure.axes) or len({column for _, column in cells}) < 2 or engine is None:
        return False
    share = engine.get()["rect"][3]
    panel = figure.get_figheight() * share / len({row for row, _ in cells})
    below = figure.get_figheight() * (1 - share)
    for found in figure.legends:
        columns: int = getattr(found, "_ncols", 1)
        narrow = max(1, columns // 2)
        found.set_ncols(narrow)
        below += 0.16 * (-(-len(found.texts) // narrow) + len(found.texts) // -columns)
    footer = figure.texts[0]
    lines = footer.get_text().count("\n")
    footer.set_text(wrap(footer.get_text().replace("\n", " "), int(ONE * 72 / (0.56 * SMALL))))
    lift = 0.1 * (footer.get_text().count("\n") - lines)
    grid = GridSpec(len(cells), 1, figure=figure)
    for axes, spot in zip(figure.axes, places):
        axes.set_subplotspec(grid[cells.index((spot.rowspan.start, spot.colspan.start)), 0])
        axes.tick_params(labelleft=str(axes.yaxis.get_label_position()) == "left")
    figure.set_size_inches(ONE, panel * len(cells) + below + lift)
    for found in figure.legends:
        found.set_bbox_to_anchor((0.5, (FOOT - 0.06 + lift) / figure.get_figheight()), figure.transFigure)
    _keep_free(figure, below + lift)
    return True


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
        low, high = (axes.get_xlim if which == "x" else axes.get_ylim)()
        own = np.unique(values)
        if which == "x" and 2 <= len(own) <= 9 and "FLOP" not in text.unit:
            axis.set_major_locator(FixedLocator(own.tolist()))
            if crowded(axes, own, np.log(high / low), lambda value: shown(text, value)):
                axis.set_major_locator(FixedLocator(legible(axes, own, np.log(high / low))))
                axes.tick_params(axis="x", rotation=60)
                for tick in axes.get_xticklabels():
                    tick.set_horizontalalignment("right")
                    tick.set_rotation_mode("anchor")
        else:
            axis.set_major_locator(FixedLocator(nice(min(low, values.min()), max(high, values.max()))))
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
    """Break a long line for a title or a tick label."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip(" ") if line else word
    return "\n".join([*lines, line])


# marks -------------------------------------------------------------------------------------------------------------


def dodge(number: int, span: float, step: float = 0.012) -> np.ndarray:
    """Factors that move the marks of `number` colours apart on a log axis over `span` (in log units)."""
    return np.asarray(np.exp((np.arange(number) - (number - 1) / 2) * step * span))


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
    strength: float = 1.0,
) -> None:
    """Draw seeds faint and their mean strong with its interval.

    Args:
        at: place on the x axis; `sideways`: on the y axis.
        seeds_at: place of the seeds, if not that of the mean.
        summary: the mean; without one, that of the values with Student's interval.
        strength: opacity.
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
        line([beside] * len(values), values, marker, alpha=0.4 * strength, markersize=2.6, mew=0, zorder=3)
    if summary.bounds:
        line([at, at], summary.bounds, linewidth=1.1, alpha=strength, zorder=4)
    face = "white" if hollow else colour
    line(at, summary.value, marker, markersize=4.2, markerfacecolor=face, alpha=strength, zorder=5)


def frontier(
    axes: Axes, cost: Any, shown: Any, gain: Any, *, tolerance: float = EQUAL_COSTS, **style: Any
) -> np.ndarray:
    """Draw the Pareto frontier as steps; returns the indices of its points, by rising cost.

    Args:
        cost, shown: places of the points on the axes [N].
        gain: what is compared at equal cost, higher is better [N].
    """
    best = stats.frontier(np.asarray(cost), np.asarray(gain), tolerance=tolerance)
    options = {"color": "black", "linewidth": 0.9, "drawstyle": "steps-post", "zorder": 1, **style}
    axes.plot(np.asarray(cost)[best], np.asarray(shown)[best], **options)
    return best


def binomial_bar(axes: Axes, x: float, share: float, puzzles: float) -> tuple[float, float]:
    """Draw the binomial 95 % interval of a share of the test puzzles as a grey bar, and return it."""
    bounds = stats.wilson(share * puzzles, puzzles)
    axes.plot([x, x], bounds, color="#c4c4c4", linewidth=3.2, solid_capstyle="butt", zorder=2)
    return bounds


def mean_of(values: Any, metric: str) -> Mean:
    """Mean with Student's interval, cut to the range of the metric."""
    text = label(metric)
    low = 0.0 if text.percent or text.log else -np.inf
    return stats.mean(values).clipped(low, 1.0 if text.percent else np.inf)
