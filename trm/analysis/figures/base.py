"""What all figures share: style, colours, axes, footer, reproducible files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
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
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from trm.analysis.labels import Label, label
from trm.analysis.specs import Figure, FitSpec
from trm.analysis.tables import Table, implied_hue
from trm.analysis.words import compact, count, listed, memory, place, point_name, value_name
from trm.errors import UserError
from trm.io import dump, write_bytes, write_text

ONE, TWO = 3.4, 7.0
"""Print widths in inches: one and two columns."""
STYLE = Path(__file__).resolve().parents[3] / "config" / "figures.mplstyle"
OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
GREY = "#767676"
MISSING = "#B00020"
FOOT = 0.30
"""Inches kept free for the footer."""


@dataclass
class Drawing:
    """A finished figure and what the report says about it."""

    canvas: Canvas
    title: str
    caption: str
    """What the marks mean, and how the numbers were made."""
    sentence: str
    """What the figure shows, from its numbers."""
    answer: str = ""
    """The same in one sentence, for the report's summary."""
    alt: str = ""
    """For readers who cannot see it."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the sentence."""
    provenance: dict[str, str] = field(default_factory=dict)


@contextmanager
def styled(path: str | Path | None = None) -> Iterator[None]:
    """Matplotlib's settings while drawing and saving. UserError if the style file does not exist or parse."""
    style = Path(path) if path else STYLE
    if not style.exists():
        raise UserError(f"{style} does not exist: name the style file with --style")
    with matplotlib.rc_context():
        try:
            matplotlib.style.use(str(style))
        except OSError as error:
            raise UserError(f"{style} is not a matplotlib style file: {error}") from None
        yield


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, *, strip: float = 0.0, **options: Any
) -> tuple[Canvas, np.ndarray]:
    """A figure with axes [rows, columns], `height` inches tall, above a strip for a legend and the footer."""
    total = height + strip + FOOT
    figure = Canvas(figsize=(width, total), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    share = (FOOT + strip) / total
    figure.get_layout_engine().set(rect=(0.004, share, 0.992, 1.0 - share - 0.01))
    return figure, axes


def strip_of(entries: int, columns: int, *, title: bool = False) -> float:
    """Inches that a legend of `entries` in `columns` needs below the axes."""
    return 0.16 * (-(-entries // columns) + title) + 0.06 if entries else 0.0


def legend(figure: Canvas, handles: Sequence[Any], columns: int, title: str = "") -> None:
    """A legend in the strip between axes and footer."""
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


def finish(
    figure: Canvas,
    spec: Figure,
    tables: Sequence[Table],
    rows: pd.DataFrame,
    *,
    title: str,
    caption: str,
    sentence: str,
    answer: str = "",
    numbers: dict[str, Any] | None = None,
) -> Drawing:
    """Add the footer and make the Drawing. Without an `answer`, it is the sentence itself."""
    facts = provenance(tables, rows)
    words = "   ".join(facts[key] for key in ("study", "size", "data", "commit"))
    figure.text(
        0.008,
        0.012,
        words,
        # a narrow figure's footer is set smaller, not cut: a character is about 0.56 em wide
        fontsize=min(5.5, 0.98 * 72 * figure.get_figwidth() / (0.56 * len(words))),
        color=GREY,
        ha="left",
        va="bottom",
    )
    lost = sum(len(table.info.get("missing", [])) for table in tables)
    if lost:
        caption += f" {count(lost, 'file')} missing: the figure shows what there is."
        figure.text(
            0.992,
            0.012 + 0.1 / figure.get_figheight(),
            f"incomplete: {count(lost, 'file')} missing",
            fontsize=5.5,
            color=MISSING,
            ha="right",
            va="bottom",
        )
    alt = f"{title}. {sentence}"
    answer = answer or sentence.strip()
    return Drawing(figure, title, caption.strip(), sentence.strip(), answer, alt, numbers or {}, facts)


def provenance(tables: Sequence[Table], rows: pd.DataFrame) -> dict[str, str]:
    """The footer's words: study and scale, runs and seeds, data fingerprint, commit."""
    info = tables[0].info
    distinct = list(dict.fromkeys(table.experiment for table in tables))
    names = listed(distinct) if len(distinct) <= 4 else count(len(distinct), "experiment")
    commits = sorted({commit for table in tables for commit in table.info.get("commits", [])})
    runs = rows.drop_duplicates("run")
    seeds = runs["seed"].nunique()
    points = rows[["experiment", "point"]].drop_duplicates().shape[0]
    shown = ", ".join(commits[:2]) + (f" and {len(commits) - 2} more" if len(commits) > 2 else "")
    prints = [str(table.info.get("fingerprint", "")) for table in tables]
    fingerprint = ", ".join(text[:8] for text in prints)
    if len(prints) > 4:
        fingerprint = hashlib.sha256("".join(prints).encode()).hexdigest()[:8]
    return {
        "study": f"study {info.get('study')}, scale {info.get('scale')}: {names}",
        "size": f"{count(points, 'point')}, {count(len(runs), 'run')}, {count(seeds, 'seed')}",
        "data": f"data {fingerprint}",
        "commit": f"commit {shown or 'unknown'}",
    }


def save(drawing: Drawing, out: str | Path) -> list[Path]:
    """Write figure.pdf, .png and .json. The same inputs give the same bytes: no dates, fixed metadata."""
    out = Path(out)
    subject = "; ".join(drawing.provenance.values())
    pdf, png = io.BytesIO(), io.BytesIO()
    drawing.canvas.savefig(
        pdf,
        format="pdf",
        metadata={
            "Title": drawing.title,
            "Subject": subject,
            "Keywords": drawing.sentence,
            "Creator": "trm.analysis",
            "CreationDate": None,
            "ModDate": None,
        },
    )
    drawing.canvas.savefig(png, format="png", metadata={"Title": drawing.title, "Description": subject})
    files = [out, out.with_suffix(".png"), out.with_suffix(".json")]
    write_bytes(files[0], pdf.getvalue())
    write_bytes(files[1], png.getvalue())
    facts = {
        "title": drawing.title,
        "caption": drawing.caption,
        "sentence": drawing.sentence,
        "answer": drawing.answer,
        "alt": drawing.alt,
        "numbers": drawing.numbers,
        "provenance": drawing.provenance,
    }
    write_text(files[2], dump(facts))
    return files


def table_of(tables: Sequence[Table], experiment: str) -> Table:
    """The table of an experiment. UserError: it was not given."""
    for table in tables:
        if table.experiment == experiment:
            return table
    raise UserError(
        f"no --table holds experiment {experiment}; given: {listed([t.experiment for t in tables])}"
    )


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


def colours(values: Sequence[Any]) -> dict[Any, str]:
    """A colour for each value: viridis for an ordered scale of more than two numbers, Okabe-Ito otherwise."""
    values = list(values)
    numeric = all(
        isinstance(value, (int, float, np.number)) and not isinstance(value, bool) for value in values
    )
    if len(values) > 8 or (numeric and len(values) > 2):
        ramp = matplotlib.colormaps["viridis"]
        return {value: to_hex(ramp(0.86 * i / max(1, len(values) - 1))) for i, value in enumerate(values)}
    return {value: OKABE_ITO[i % len(OKABE_ITO)] for i, value in enumerate(values)}


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


def axis_scale(axes: Axes, which: str, text: Label, values: np.ndarray, *, log: bool | None = None) -> None:
    """Label and scale one axis; log axes get readable ticks (1-2-5, or the data's own places on x)."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(text.axis)
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    use_log = (text.log if log is None else log) and len(values) > 0 and (values > 0).all()
    if use_log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        low, high = (axes.get_xlim if which == "x" else axes.get_ylim)()
        if which == "x" and 2 <= len(np.unique(values)) <= 9 and "FLOP" not in text.unit:
            axis.set_major_locator(FixedLocator(apart(np.unique(values), np.log(high / low))))
        else:
            axis.set_major_locator(FixedLocator(nice(min(low, values.min()), max(high, values.max()))))
    if text.percent:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}"))
    elif text.binary:
        if not use_log:
            axis.set_major_locator(BinaryLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: memory(value)))
    elif use_log or (len(values) and np.abs(values).max() >= 1e4):
        axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))


class BinaryLocator(MaxNLocator):
    """Round numbers of KiB, MiB or GiB."""

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        unit = 1024.0 ** max(0, min(3, int(np.log2(max(abs(vmax), 1)) // 10)))
        return super().tick_values(vmin / unit, vmax / unit) * unit


def apart(values: np.ndarray, span: float, share: float = 0.12) -> list[float]:
    """Tick places that do not run into each other: neighbours keep `share` of the log axis' whole span."""
    kept: list[float] = []
    for value in values:
        if not kept or np.log(value / kept[-1]) >= share * span:
            kept.append(float(value))
    return kept


def nice(low: float, high: float) -> list[float]:
    """Ticks of a log axis within [low, high]: 1-2-5, finer below one decade, powers of ten over wide
    ranges."""
    decades = np.arange(np.floor(np.log10(low)) - 1, np.ceil(np.log10(high)) + 1)
    span = np.log10(high / low)
    steps = (
        (1, 1.5, 2, 3, 4, 5, 7) if span < 0.8 else (1, 2, 5) if span < 2.6 else (1, 3) if span < 3.2 else (1,)
    )
    if span > 8:
        decades = decades[:: int(np.ceil(span / 7))]
    ticks = [float(step * 10.0**decade) for decade in decades for step in steps]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def heading(axes: Axes, title: str, lines: str = "", size: float = 6.5) -> None:
    """A bold title with small lines under it, above the axes and outside the layout's sums."""
    below = lines.count("\n") + 1 if lines else 0
    axes.set_title(title, pad=6 + 1.32 * size * below)
    if lines:
        text = axes.annotate(
            lines,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 4),
            textcoords="offset points",
            fontsize=size,
            color="#333333",
            va="bottom",
            linespacing=1.15,
        )
        text.set_in_layout(False)


def hue_name(column: str, value: Any) -> str:
    """A legend entry: the value alone; `legend_title` names the column."""
    if column == "series":
        return wrap(place(column, value), 44)
    if column == "experiment":  # an experiment named after what it varies
        return label(f"model.{value}").name
    return value_name(value, column) if column != "label" else point_name(value)


def legend_title(column: str, rows: pd.DataFrame) -> str:
    """What the entries of a legend are values of; nothing where they are words that speak for themselves."""
    return "" if column in ("label", "series") else "varied" if column == "experiment" else label(column).name


def with_hue(spec: Figure, table: Table, rows: pd.DataFrame, taken: Sequence[str]) -> Any:
    """The spec with the hue that its table calls for, where it names none."""
    if getattr(spec, "hue", None):
        return spec
    return spec.model_copy(update={"hue": implied_hue(table, rows, taken)})


def wrap(text: str, width: int) -> str:
    """Break a long line for a title or a tick label."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
