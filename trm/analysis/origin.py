"""Where fits and figures come from: the tables and runs that they record, and what every reader compares.

Needs neither numpy nor pandas: the Snakefile asks whether figures are current.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.errors import UserError
from trm.io import open_regular, sha256_file
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


def read_stamp(path: Path, identity: str = "") -> dict[str, Any]:
    """The JSON file beside a figure or a report (path of any of its files), after comparing the others with their
    checksums.

    Args:
        identity: of what is wanted (`Project.fixed`); empty: not known.

    Raises:
        UserError: missing, damaged, of another name or identity.
    """
    stamp = path.with_suffix(".json")
    facts = read_record(stamp, ("name", "sha256"))
    if facts["name"] != stamp.stem:
        raise UserError(f"{stamp} belongs to {facts['name']}, not to {stamp.stem}: {AGAIN}")
    for end, wanted in dict(facts["sha256"]).items():
        check_checksum(path.with_suffix(str(end)), wanted)
    if identity and facts.get("identity") != identity:
        raise UserError(f"{path} was made from other settings or results than the study's: {AGAIN}")
    return facts


def is_current(path: Path, identity: str) -> bool:
    """Whether a file of a fixed name is there and proves that it has this identity. Reads its JSON file without the
    checksum of that: what a Snakefile does for every figure takes no time."""
    try:
        with open_regular(path.with_suffix(".json")) as file:
            facts = json.loads(file.read())
        own = facts["identity"] == identity and facts["name"] == path.stem
        return own and all(sha256_file(path.with_suffix(end)) == sha for end, sha in facts["sha256"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def read_figure(path: Path, tables: Sequence[Table] = (), identity: str = "") -> dict[str, Any]:
    """`read_stamp` of a figure. UserError: also if it was not made from these tables."""
    facts = read_stamp(path, identity)
    check_origin(path.with_suffix(".json"), facts, tables)
    return facts
