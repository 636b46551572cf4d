"""Where fits and figures come from: the tables and runs that they record, and what every reader compares.

Needs neither numpy nor pandas: the Snakefile publishes figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.errors import UserError
from trm.study.records import AGAIN, check_checksum, check_name, read_record

if TYPE_CHECKING:
    from trm.analysis.tables import Table


def origin(tables: Sequence[Table]) -> dict[str, Any]:
    """The fingerprints of the rows of these tables by their names, and of their runs."""
    runs = {run: record.get("fingerprint") for table in tables for run, record in table.info["runs"].items()}
    prints = {table.info.get("name", table.experiment): table.info.get("fingerprint") for table in tables}
    return {"tables": prints, "runs": runs}


def check_origin(path: Path, document: dict[str, Any], tables: Sequence[Table]) -> None:
    """Compare a fit or a figure with the tables that are shown with it. UserError: it was made from others."""
    for name, fingerprint in origin(tables)["tables"].items():
        if document.get("tables", {}).get(name, fingerprint) != fingerprint:
            raise UserError(f"{path} was made from an earlier table {name}: {AGAIN}")


def read_fit(path: str | Path, tables: Sequence[Table] = ()) -> dict[str, Any]:
    """The content of a fit.json. UserError: missing, damaged, another fit's, or not made from these tables."""
    path = Path(path)
    fit = read_record(path, ("spec", "groups"))
    check_name(path, path.stem, fit.get("name", path.stem))
    check_origin(path, fit, tables)
    return fit


def read_figure(path: Path, tables: Sequence[Table] = ()) -> dict[str, Any]:
    """The words and numbers beside a figure (path of any of its files), after comparing its PDF and PNG with their
    checksums. UserError: missing, damaged, another figure's, or not made from these tables."""
    words = path.with_suffix(".json")
    facts = read_record(words)
    check_name(words, words.stem, facts.get("name", words.stem))
    for end, wanted in facts.get("sha256", {}).items():
        check_checksum(path.with_suffix(end), wanted)
    check_origin(words, facts, tables)
    return facts
