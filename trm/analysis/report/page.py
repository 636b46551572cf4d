"""Report -> one HTML file that needs nothing else: styles, scripts, figures and puzzles are inside it."""

import json
import re
from base64 import b64encode
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trm.analysis.fits.compare import MARGIN
from trm.analysis.labels import GRAMMAR
from trm.analysis.report.contents import Report
from trm.analysis.words import count, duration, sentence
from trm.errors import UserError
from trm.play import models_folder
from trm.play.page import part, policy, scripts

HERE = Path(__file__).parent
BADGES = {"supported": "established", "undecided": "open"}
"""Verdict of a finding -> the word of its badge; `supported` is a word for hypotheses."""
TERMS = (
    "A supervision step is one call of the model, which improves its last answer. Nsup: supervision steps of a puzzle "
    "in training. n: updates of the latent state in a step. d: the width of the model. Attempt: a new start at the "
    "same puzzle, which is rearranged or relabelled (symmetry) or whose states are disturbed (noise). Halt logit: how "
    "far the model trusts its answer. Nats per cell: the loss; 0.1 is a probability of 90 % for the right digit, 0.7 "
    "one of 50 %. Established: the interval excludes zero. A hypothesis is undecided if the interval leaves the range "
    "that it names."
)
"""What the words of the first screen mean."""
NO_BREAK = "\u00a0"


def page(report: Report) -> str:
    """The HTML text."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "tied": tied, "sentence": sentence}
    environment.filters |= {"picture": picture}
    # "<" is escaped so that no text inside the data can end the script element.
    puzzles = json.dumps(report.puzzles, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    scrolling, viewer = ((HERE / name).read_text(encoding="utf-8") for name in ("scrolling.js", "viewer.js"))
    return environment.get_template("template.html").render(
        report=report,
        play=_play(),
        policy=policy([scrolling, viewer, *scripts()]),
        count=count,
        margin=MARGIN,
        grammar=GRAMMAR,
        terms=TERMS,
        badges=BADGES,
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        scrolling=Markup(scrolling),
        viewer=Markup(viewer),
        puzzles=Markup(puzzles),
    )


def picture(svg: str) -> str:
    """The address of an SVG in an `img` element, where a script in it never runs."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def _play() -> str:
    """The trained models to play with, where there are some that run in a page."""
    try:
        return part(models_folder())
    except UserError:
        return ""


def tied(text: str) -> str:
    """The text with no line break inside an interval, or between a number and its unit."""
    text = re.sub(r"\[[^\[\]]{1,40}\]", lambda found: found[0].replace(" ", NO_BREAK), text)
    units = r"(?=%|points?\b|[numkMG]?i?B\b|s\b|min\b|h\b|d\b|FLOPs|×|steps?\b|puzzles/s|\[)"
    return re.sub(r"(?<=[\d%]) " + units, NO_BREAK, text).replace("× ", f"×{NO_BREAK}")
