"""Report -> one HTML file that needs nothing else (styles, script, figures and puzzles are inside it) -> PDF."""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trm.analysis.fits.compare import MARGIN
from trm.analysis.report.contents import FigureBlock, Report
from trm.analysis.words import count, duration, sentence
from trm.errors import UserError
from trm.play import models_folder
from trm.play.page import part

HERE = Path(__file__).parent
NO_BREAK = "\u00a0"
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
SECONDS = 180
"""Time limit of a browser."""


def page(report: Report, *, paper: bool = False) -> str:
    """The HTML text. `paper`: for print, with everything unfolded and no script."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "image": image, "tied": tied, "sentence": sentence}
    environment.filters["stacked"] = stacked
    # "<" is escaped so that no text inside the data can end the script element.
    puzzles = json.dumps(report.puzzles, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template("template.html").render(
        report=report,
        play="" if paper else _play(),
        paper=paper,
        count=count,
        margin=MARGIN,
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        scrolling=Markup((HERE / "scrolling.js").read_text(encoding="utf-8")),
        viewer=Markup((HERE / "viewer.js").read_text(encoding="utf-8")),
        puzzles=Markup(puzzles),
    )


def stacked(caption: str) -> str:
    """A caption of panels that lie below each other."""
    return re.sub(r"\b(Middle and right|Right):", "Below:", re.sub(r"\bLeft:", "Top:", caption))


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


def image(block: FigureBlock) -> str:
    """A data URI of the figure's PNG, for print."""
    assert block.png is not None
    return "data:image/png;base64," + base64.b64encode(block.png).decode()


def print_pdf(html: str, out: str | Path) -> str:
    """Write the PDF; returns what printed it. UserError: no browser is installed, or it could not print."""
    browser = next((found for found in map(shutil.which, BROWSERS) if found), None)
    remedy = "install Chromium or Chrome, or print the HTML page from any browser"
    if not browser:
        raise UserError(f"no PDF: {remedy}")
    with tempfile.TemporaryDirectory() as folder:
        reason = _browser(browser, html, Path(folder), Path(out))
    if reason:
        raise UserError(f"no PDF ({Path(browser).name}: {reason}): {remedy}")
    return Path(browser).name


def _browser(browser: str, html: str, folder: Path, out: Path) -> str:
    """Print by a headless browser; returns why it failed, or nothing."""
    page, pdf = folder / "report.html", folder / "report.pdf"
    page.write_text(html, encoding="utf-8")
    flags = ["--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-sync", "--no-first-run", "--no-pdf-header-footer"]
    flags.append(f"--user-data-dir={folder / 'profile'}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox refuses root, as in containers; the page is our own
    command = [browser, *flags, f"--print-to-pdf={pdf}", page.as_uri()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    except OSError as error:
        return str(error)
    if not pdf.exists() or not pdf.stat().st_size:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(pdf, out)
    return ""
