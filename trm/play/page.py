"""The page's HTML: a whole file, or a part for the report and the documentation site. It loads nothing else."""

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trm.play.source import sources

HERE = Path(__file__).parent
EXAMPLES = (
    "4.......5.61..4..5.1....1.653...36.4",
    "..3.....25.1....64.......5.3..6.....",
    ".8.2.74.9..4.......6.9..57114..8..9..57492..3..9..18..7...2.3...3.8..1.7..83....6",
    "....54.......1..47.9....3......6.9..1.7....3........74.....52..7.2..9...34...8.9.",
    "................12..3..4.........5......1......67..8.3.2.5.....17.....9.9....3...",
)
"""Puzzles to pick, each shown under a new random symmetry."""


def policy(scripts: Iterable[str]) -> str:
    """A Content-Security-Policy under which a page runs these inline scripts and no others, and loads nothing."""
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{text}'" for text in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; worker-src blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def scripts() -> list[str]:
    """The inline scripts of `part`."""
    return [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.js"))]


def part(models: Path) -> Markup:
    """The page's elements, style and scripts; all of its rules apply below `.trm-play` only.

    Raises:
        UserError: no model in the subfolders of `models` can run in a page.
    """
    return Markup(_render("part.html", sources(models)))


def page(models: Path) -> str:
    """A whole HTML file; see `part`."""
    return _render("page.html", sources(models))


def _render(template: str, models: list[dict[str, object]]) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    data = json.dumps({"models": models, "examples": EXAMPLES}, separators=(",", ":"))
    texts = {path.stem: Markup(path.read_text(encoding="utf-8")) for path in HERE.glob("*.[cj]s*")}
    # "<" is escaped so that no text inside the data can end the script element
    return environment.get_template(template).render(
        data=Markup(data.replace("<", "\\u003c")), policy=policy(scripts()), **texts
    )
