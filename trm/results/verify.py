"""Check a whole tree of results: every file against its name, its checksum and the files that it was made from."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trm.analysis.origin import read_figure, read_fit
from trm.analysis.tables import Table, load
from trm.data.files import MANIFEST, read_manifest
from trm.data.files import verify as verify_files
from trm.errors import UserError
from trm.study.fingerprint import digest
from trm.study.records import (
    AGAIN,
    CHECKSUM,
    TRAINING,
    WEIGHTS,
    check_evaluation,
    check_name,
    read_record,
    read_training,
    weights_metadata,
)


class Verified(NamedTuple):
    """What was found in a tree."""

    counts: dict[str, int]
    """Kind of file -> number of those checked."""
    problems: list[str]
    """A sentence for each."""
    unproven: list[str]
    """Runs with a file that has no checksum, because an earlier version wrote it."""


def verify(root: Path, wanted: dict[str, str] | None = None) -> Verified:
    """Check everything below a results folder. UserError: it holds no results.

    Args:
        wanted: `Project.fixed` of the study that the figures and the report should be of; None: they are not compared.
    """
    wanted = wanted or {}
    runs: dict[str, dict[str, Any]] = {}
    tables: list[Table] = []
    unproven: set[str] = set()
    checks: dict[str, tuple[str, Callable[[Path], Any]]] = {
        "pool": (f"sources/*/{MANIFEST}", partial(_data, kind="source")),
        "data set": (f"datasets/*/{MANIFEST}", partial(_data, kind="dataset")),
        "run": (f"runs/*/{TRAINING}", partial(_run, runs=runs, unproven=unproven)),
        "evaluation": ("runs/*/evaluation-*.json", partial(_evaluation, runs=runs, unproven=unproven)),
        "table": ("tables/*.csv", partial(_table, runs=runs, tables=tables)),
        "fit": ("fits/*.json", partial(read_fit, tables=tables)),
        "figure": ("plots/*.pdf", partial(_fixed, tables=tables, wanted=wanted)),
        "report": ("report.html", partial(_fixed, tables=(), wanted=wanted)),
    }
    counts, problems = {}, []
    odd = [path for path in sorted(root.rglob("*")) if not (path.is_file() or path.is_dir())]
    problems += [f"{path} is no regular file: {AGAIN}" for path in odd]  # reading a FIFO would never end
    unreadable = {path.parent for path in odd}
    for kind, (pattern, check) in checks.items():
        paths = [path for path in sorted(root.glob(pattern)) if not path.name.endswith(".curves.csv")]
        counts[kind] = len(paths)
        for path in paths:
            if path.parent in unreadable:
                continue
            try:
                check(path)
            except UserError as error:
                problems.append(str(error))
            except Exception as error:  # entries of other types than this version writes
                problems.append(f"{path} is damaged or of another version ({error!r}): {AGAIN}")
    if not any(counts.values()):
        what = (
            "holds no results" if os.access(root, os.R_OK | os.X_OK) else "does not exist or cannot be read"
        )
        raise UserError(f"{root} {what}: give the results folder of a study")
    return Verified(counts, problems, sorted(unproven))


def _data(path: Path, kind: str) -> None:
    manifest = read_manifest(path.parent, kind)
    identity = digest(manifest["identity"]) if kind == "source" else str(manifest["identity"])
    name = path.parent.name
    check_name(path, name, f"{name.rpartition('-')[0]}-{identity[:8]}")
    verify_files(path.parent, manifest["sha256"])


def _run(path: Path, runs: dict[str, dict[str, Any]], unproven: set[str]) -> None:
    folder = path.parent
    runs[folder.name] = training = read_training(folder)
    if not {"sha256", CHECKSUM} <= set(training):
        unproven.add(folder.name)
    meta = weights_metadata(folder / WEIGHTS)["meta"]
    if (meta["run"], meta["fingerprint"]) != (training["run"], training["fingerprint"]):
        raise UserError(f"{folder / WEIGHTS} belongs to {meta['run']}, not to {training['run']}: {AGAIN}")


def _evaluation(path: Path, runs: dict[str, dict[str, Any]], unproven: set[str]) -> None:
    training = runs.get(path.parent.name) or read_training(path.parent, ())
    document = read_record(path)
    check_evaluation(path, document, training)
    if CHECKSUM not in document:
        unproven.add(path.parent.name)


def _table(path: Path, runs: dict[str, dict[str, Any]], tables: list[Table]) -> None:
    table = load(path)
    tables.append(table)
    for run, record in table.info["runs"].items():
        training = runs.get(run, {})
        pairs = (
            (training.get("fingerprint"), record.get("fingerprint")),
            (training.get("sha256", {}).get(WEIGHTS), record.get("weights_sha256")),
        )
        if any(now and then and now != then for now, then in pairs):
            raise UserError(f"{path} was made from another training of {run} than the one here: {AGAIN}")


def _fixed(path: Path, tables: Sequence[Table], wanted: dict[str, str]) -> None:
    name = f"results/plots/{path.name}" if path.suffix == ".pdf" else f"results/{path.name}"
    read_figure(path, tables, wanted.get(name, ""))
