"""The report as a PDF: its HTML, printed by the browser at hand, else by WeasyPrint."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from trm.errors import UserError

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
SECONDS = 180
"""Time limit of a browser."""


def print_pdf(html: str, out: str | Path) -> str:
    """Write the PDF; returns what printed it. UserError: neither a browser nor WeasyPrint is installed, or none of them
    could print."""
    reasons = []
    browser = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if browser:
        with tempfile.TemporaryDirectory() as folder:
            reason = _browser(browser, html, Path(folder), Path(out))
        if not reason:
            return Path(browser).name
        reasons.append(f"{Path(browser).name}: {reason}")
    try:
        importlib.import_module("weasyprint").HTML(string=html).write_pdf(str(out))
        return "WeasyPrint"
    except ModuleNotFoundError:
        pass
    except OSError as error:  # its system libraries are missing
        reasons.append(f"WeasyPrint: {error}")
    shown = f" ({'; '.join(reasons)})" if reasons else ""
    raise UserError(
        f"no PDF{shown}: install Chromium, Chrome or weasyprint, or print the HTML page from any browser"
    )


def _browser(browser: str, html: str, folder: Path, out: Path) -> str:
    """Print by a headless browser; returns why it failed, or nothing."""
    page, pdf = folder / "report.html", folder / "report.pdf"
    page.write_text(html, encoding="utf-8")
    flags = ["--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += [
        "--disable-sync",
        "--no-first-run",
        "--no-pdf-header-footer",
        f"--user-data-dir={folder / 'profile'}",
    ]
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
