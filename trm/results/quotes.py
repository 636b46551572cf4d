"""Numbers in Markdown that are written from kept results: between two comments, the first of which says which.

    <!--= baseline_laptop exact_accuracy eval_steps=32 -->93.4 % [91.2, 95.5]<!--.-->
    <!--= views_laptop exact_accuracy label=a eval_steps=64 less label=b -->+3.2 [1.1, 5.3] points<!--.-->

A folder of docs/results, a metric and the cells that select its rows give the mean over seeds with its 95 % interval;
`less` the paired difference to other rows; `bare` (the last word) leaves the interval out.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import yaml

from trm.analysis.labels import label
from trm.analysis.stats import mean, paired
from trm.analysis.tables import Table, load
from trm.analysis.words import changed, measured
from trm.errors import UserError

QUOTE = re.compile(r"<!--= (.*?) -->(.*?)<!--\.-->", re.DOTALL)


def quoted(text: str, results: Path) -> str:
    """The Markdown with every quote written anew from the folder of kept results. UserError: a quote names a table,
    column or row that does not exist."""
    tables: dict[str, Table] = {}

    def write(found: re.Match[str]) -> str:
        name, *words = shlex.split(found[1])
        try:
            value = _cell(tables.setdefault(name, load(results / name / "table.csv")), words)
        except (UserError, KeyError, ValueError) as error:
            raise UserError(f"<!--= {' '.join(found[1].split())} -->: {error}") from None
        return f"<!--= {found[1]} -->{value}<!--.-->"

    return QUOTE.sub(write, text)


def _cell(table: Table, words: list[str]) -> str:
    metric, *cells = words
    bare = "bare" in cells[-1:]
    cells = cells[: len(cells) - bare]
    at = cells.index("less") if "less" in cells else len(cells)
    first = _seeds(table, metric, cells[:at])
    if at == len(cells):
        found = mean(first).clipped(0.0, 1.0) if label(metric).percent else mean(first)
        return measured(metric, found.value, None if bare else found.bounds)
    found = paired(_seeds(table, metric, cells[at + 1 :]), first)
    return changed(metric, found.value, None if bare else found.bounds)


def _seeds(table: Table, metric: str, cells: list[str]) -> pd.Series:
    where = {key: yaml.safe_load(value) for key, _, value in (cell.partition("=") for cell in cells)}
    found = table.by_seed(where, metric)
    if found.empty:
        raise UserError(f"no row of {table.experiment} has {' '.join(cells)}")
    return found
