"""Report -> one HTML file that needs nothing else: styles, script, figures and puzzles are inside it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from trm.analysis.report.contents import BUDGET_COLUMNS, FigureBlock, Report
from trm.analysis.words import count, duration

HERE = Path(__file__).parent


def page(report: Report) -> str:
    """The HTML text."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["duration"] = duration
    environment.filters["image"] = image
    template = environment.get_template("template.html")
    # "<" is escaped so that no text inside the data can end the script element.
    puzzles = json.dumps(report.puzzles, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return template.render(
        report=report,
        count=count,
        budget_columns=BUDGET_COLUMNS,
        cells=lambda rows: [list(row.values()) for row in rows],
        style=Markup((HERE / "style.css").read_text()),
        script=Markup((HERE / "viewer.js").read_text()),
        puzzles=Markup(puzzles),
    )


def image(block: FigureBlock) -> str:
    """A data URI of a figure: the PNG with a palette of 256 colours, a third of its size and the same to the eye."""
    assert block.png is not None
    with Image.open(io.BytesIO(block.png)) as picture:
        small = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    data = min(buffer.getvalue(), block.png, key=len)
    return "data:image/png;base64," + base64.b64encode(data).decode()
