"""A drawn figure: what the report says about it, its origin, its files, and its form for a narrow screen."""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.gridspec import GridSpec

from trm.analysis.findings import main, strength, told
from trm.analysis.kinds.common import MISSING, ONE, SMALL, Drawing, heading, legend, plain, settle
from trm.analysis.specs import Figure
from trm.analysis.tables import Table
from trm.analysis.words import count, listed
from trm.errors import UserError
from trm.io import dump, sha256_file, shipped, write_bytes, write_text
from trm.study.records import sealed

STYLE = Path("config/figures.mplstyle")
SMALLEST = 4
"""Panels beside each other on a narrow screen, where a row has more of them than this."""


@contextmanager
def styled(path: str | Path | None = None) -> Iterator[None]:
    """Matplotlib's settings while drawing and saving. UserError: the style file is missing or invalid."""
    style = Path(path) if path else STYLE if STYLE.exists() else shipped(str(STYLE))
    if not style.exists():
        raise UserError(f"{style} does not exist: name the style file with --style")
    with matplotlib.rc_context():
        try:
            matplotlib.style.use(["default", str(style)])  # not the user's matplotlibrc
        except OSError as error:
            raise UserError(f"{style} is not a matplotlib style file: {error}") from None
        yield


def finish(drawing: Drawing, spec: Figure, tables: Sequence[Table]) -> Drawing:
    """Add what every figure has: heading, origin, a note on missing files, an answer.

    Panels that have headings keep them. Of `tables`, those whose rows are shown count.
    """
    figure, shown = drawing.canvas, set(drawing.rows["experiment"])
    tables = [table for table in tables if table.experiment in shown]
    drawing.title = spec.title or drawing.title
    if not any(figure.axes[0].get_title(place) for place in ("left", "center")):
        heading(figure.axes[0], plain(drawing.title), drawing.lines)
    facts = drawing.provenance = provenance(tables, drawing.rows)
    if drawing.carried not in (None, drawing.rows["run"].nunique()):
        facts["size"] += f" ({drawing.carried} in the fit)"
    if _uneven(drawing.rows):
        drawing.caption += " Runs are measured after as many supervision steps as each had in training."
    lost = sum(len(table.info.get("missing", [])) for table in tables)
    if lost:
        drawing.caption += f" Incomplete: {count(lost, 'file')} missing, the figure shows the rest."
        words = f"incomplete: {count(lost, 'file')} missing"
        figure.text(0.992, 0.995, words, fontsize=SMALL, color=MISSING, ha="right", va="top")
    settle(figure, figure.get_figheight())
    drawing.caption = drawing.caption.strip()
    first = main(drawing.findings)
    drawing.sentence = " ".join(filter(None, [told(drawing.findings), drawing.remarks.strip()]))
    drawing.answer = first.text if first else drawing.answer or drawing.sentence
    drawing.strength = strength(drawing.findings)
    return drawing


def _uneven(rows: pd.DataFrame) -> bool:
    """Whether primary rows differ in their supervision steps at test time, each at its training depth."""
    own = (rows["eval_steps"] == rows["model.halt_max_steps"]).all()
    return bool(rows["primary"].all() and rows["eval_steps"].nunique() > 1 and own)


def provenance(tables: Sequence[Table], rows: pd.DataFrame) -> dict[str, str]:
    """Where a figure comes from: study and scale, runs and seeds, data fingerprint, commit."""
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
    """Write figure.pdf, .png and .json. The same inputs give the same bytes: no dates, fixed metadata. `origin`:
    further entries of the JSON file, which hold what the figure was made from."""
    out = Path(out)
    subject = "; ".join(drawing.provenance.values())
    about: dict[str, str | None] = {"Title": drawing.title, "Subject": subject, "Keywords": drawing.sentence}
    about |= {"Creator": "trm.analysis", "CreationDate": None, "ModDate": None}
    pdf, png = io.BytesIO(), io.BytesIO()
    with laid_out(drawing.canvas):
        drawing.canvas.savefig(pdf, format="pdf", metadata=about)
        drawing.canvas.savefig(png, format="png", metadata={"Title": drawing.title, "Description": subject})
        facts = words_of(drawing) | {"inches": drawing.canvas.get_figwidth(), "svg": _svg(drawing)}
    files = [out, out.with_suffix(".png"), out.with_suffix(".json")]
    files[2].unlink(missing_ok=True)  # it never outlives the picture that it describes
    write_bytes(files[0], pdf.getvalue())
    write_bytes(files[1], png.getvalue())
    facts["narrow"] = _svg(drawing) if stack(drawing.canvas) else ""
    own = {"name": out.stem, "sha256": {file.suffix: sha256_file(file) for file in files[:2]}}
    write_text(files[2], dump(sealed({**facts, **own, **(origin or {})})))
    return files


@contextmanager
def laid_out(figure: Canvas) -> Iterator[None]:
    """Compute the layout once: the files saved meanwhile share it."""
    engine = figure.get_layout_engine()
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # with "none" savefig would draw twice
    yield
    figure.set_layout_engine(engine)


def words_of(drawing: Drawing) -> dict[str, Any]:
    """Everything of a figure but its picture, for its JSON."""
    hidden = ("canvas", "rows", "lines", "remarks", "carried")
    facts = {key: value for key, value in vars(drawing).items() if key not in hidden}
    return {**facts, "findings": [finding.record for finding in drawing.findings]}


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
    """Put panels that lie beside each other below each other, for a narrow screen; False: there are none. Of many small
    ones SMALLEST stay beside each other. A colour bar has no place in the grid: it stays beside its maps."""
    places = {axes: spot for axes in figure.axes if (spot := axes.get_subplotspec())}
    cells = sorted({(spot.rowspan.start, spot.colspan.start) for spot in places.values()})
    engine = figure.get_layout_engine()
    rows, columns = ({cell[axis] for cell in cells} for axis in (0, 1))
    if len(columns) < 2 or engine is None:
        return False
    beside = SMALLEST if len(columns) > SMALLEST else 1
    lines = -(-len(columns) // beside)  # that one row becomes
    height = figure.get_figheight() * engine.get()["rect"][3] * lines
    grid = GridSpec(len(rows) * lines, beside, figure=figure)
    ranks = [{place: rank for rank, place in enumerate(sorted(found))} for found in (rows, columns)]
    for axes, spot in places.items():
        row, column = ranks[0][spot.rowspan.start], ranks[1][spot.colspan.start]
        axes.set_subplotspec(grid[row * lines + column // beside, column % beside])
        axes.tick_params(labelleft=True)
    for found in list(figure.legends):  # a legend does not rearrange its entries itself
        found.remove()
        fewer = max(1, getattr(found, "_ncols", 1) // 2)
        entries = [handle for handle in found.legend_handles if handle is not None]
        for handle, text in zip(entries, found.get_texts(), strict=True):
            handle.set_label(text.get_text())
        legend(figure, entries, fewer, found.get_title().get_text())
    figure.set_figwidth(ONE)
    settle(figure, height)
    return True
