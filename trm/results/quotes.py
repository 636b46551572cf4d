"""Numbers in Markdown that are written from kept results: a query says which.

In a table's cell, between two comments:

    | <!--= baseline_laptop exact_accuracy eval_steps=32 -->93.4 % [91.2, 95.5]<!--.--> |

In prose, as a link whose definition has the query as its title, because a line that begins with a comment would end
the paragraph:

    The best width grows as compute to the power [0.52 [0.47, 0.57]][=width].

    [=width]: results/isoflop_laptop/README.md "isoflop_laptop finding kind=optimum metric=model.d_model"

A query names a folder of docs/results, a metric and the cells that select its rows: the mean over seeds with the 95 %
interval that figures give it. `less` gives the paired difference to other rows. With `finding` for a metric, the cells
select one row of the folder's findings.csv: its value with its interval, `verdict` or `text` as the last word that.
`bare` as the last word leaves the interval out.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import yaml

from trm.analysis.findings import largest
from trm.analysis.kinds.common import mean_of
from trm.analysis.stats import paired
from trm.analysis.tables import Table, load
from trm.analysis.words import changed, measured
from trm.errors import UserError

COMMENT = re.compile(r"<!--= (.*?) -->(.*?)<!--\.-->", re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\[=([\w-]+)\]")
DEFINITION = re.compile(r'^\[=([\w-]+)\]: +\S+ +"(.*)"$', re.MULTILINE)
BEGINS = re.compile(r"^<!--=.*", re.MULTILINE)
INTERVAL = re.compile(r"\[[−-]?[\d.,]+, [−-]?[\d.,]+\]")
Row = Mapping[str, object]
"""Of a table of findings."""


def quoted(text: str, results: Path, found: Mapping[str, Sequence[Row]] | None = None) -> str:
    """The Markdown with every quote written anew.

    Args:
        text: of a page.
        results: the folder of kept results.
        found: findings by folder, in place of those in its findings.csv.

    Raises:
        UserError: a quote names a table, column, row or definition that does not exist.
    """
    tables: dict[str, Table] = {}

    def value(query: str) -> str:
        name, *words = shlex.split(query)
        try:
            if words[:1] == ["finding"]:
                return _finding(_rows(results / name, (found or {}).get(name)), words[1:])
            return _cell(tables.setdefault(name, load(results / name / "table.csv")), words)
        except (UserError, KeyError, ValueError, IndexError) as error:
            raise UserError(f"quote {' '.join(query.split())}: {error}") from None

    queries = dict(DEFINITION.findall(text))
    used = {quote[2] for quote in LINK.finditer(text) if not _code(quote)}
    if lost := sorted(used ^ set(queries)):
        raise UserError(
            f"quote [={lost[0]}] is {'not defined' if lost[0] in used else 'defined, but not used'}"
        )
    text = COMMENT.sub(lambda quote: f"<!--= {quote[1]} -->{value(quote[1])}<!--.-->", text)
    return LINK.sub(lambda link: link[0] if _code(link) else f"[{value(queries[link[2]])}][={link[2]}]", text)


def _code(quote: re.Match[str]) -> bool:
    """Whether a quote stands in an indented block of code."""
    text, start = quote.string, quote.start()
    return text[text.rfind("\n", 0, start) + 1 :].startswith("    ")


def misplaced(text: str) -> list[str]:
    """The lines that begin with a quote in comments: there CommonMark ends the paragraph."""
    return BEGINS.findall(text)


def typed(text: str) -> list[str]:
    """The intervals in a text that no quote holds."""
    return INTERVAL.findall(LINK.sub("", COMMENT.sub("", text)))


def _rows(folder: Path, given: Sequence[Row] | None) -> Sequence[Row]:
    if given is not None:
        return given
    path = folder / "findings.csv"
    if not path.exists():
        raise UserError(f"{path} does not exist: run `python -m trm.results.redraw` with --write")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _finding(rows: Sequence[Row], words: list[str]) -> str:
    """The amount, verdict or sentence of the one row that the cells select."""
    end = words.pop() if words and "=" not in words[-1] else ""
    if end not in ("", "bare", "verdict", "text"):
        raise UserError(f"{end!r} is none of bare, verdict, text")
    wanted = dict(cell.split("=", 1) for cell in words)
    chosen = [row for row in rows if all(str(row[key]) == value for key, value in wanted.items())]
    if len(chosen) != 1:
        raise UserError(f"{len(chosen)} findings have {' '.join(words)}, not one")
    return str(chosen[0][end]) if end in ("verdict", "text") else _bare(str(chosen[0]["amount"]), end)


def _bare(amount: str, end: str) -> str:
    return re.sub(r" (\[[^\]]*\]|\(at (least|most) [^)]*\))", "", amount) if end else amount


def _cell(table: Table, words: list[str]) -> str:
    metric, *cells = words
    bare = "bare" in cells[-1:]
    cells = cells[: len(cells) - bare]
    at = cells.index("less") if "less" in cells else len(cells)
    first = _seeds(table, metric, cells[:at])
    if at == len(cells):
        found = mean_of(first, metric, float(_seeds(table, "puzzles", cells).iloc[0]))
        return measured(metric, found.value, None if bare else found.bounds)
    found = paired(*table.sides(metric, _where(cells[at + 1 :]), _where(cells[:at]))[0])
    most = largest(metric, "difference")
    return changed(metric, found.value, None if bare else found.clipped(-most, most).bounds)


def _where(cells: list[str]) -> dict[str, object]:
    return {key: yaml.safe_load(value) for key, _, value in (cell.partition("=") for cell in cells)}


def _seeds(table: Table, metric: str, cells: list[str]) -> pd.Series:
    found = table.by_seed(_where(cells), metric)
    if found.empty:
        raise UserError(f"no row of {table.experiment} has {' '.join(cells)}")
    return found
