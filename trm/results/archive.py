"""Copy results to a bucket (or another folder) and back. Files with equal checksums are skipped.

Both places have the pipeline's `results/...` layout: an archive can serve as a study's `storage_prefix`, and results of
a pod can be collected from its `storage_prefix`.
"""

import filecmp
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.errors import UserError
from trm.pipeline.catalogue import RUN_FILES
from trm.storage import ObjectInfo, Store, is_remote, open_store
from trm.storage.base import joined
from trm.study.reading import parse

if TYPE_CHECKING:
    import pandas as pd

    from trm.analysis.specs import Figure

RESULTS = ("runs", "tables", "fits", "plots")
"""Folders of results. Data sets can be rebuilt, and checkpoints only serve to resume."""
FILES = ("report.html", "report.json")
AXES = ("run", "step", "rows", "flops")
"""Columns of histories against which figures show the others."""


def open_place(uri: str) -> Store:
    """The `results` of a folder or of a bucket's prefix."""
    place = uri.rstrip("/")
    return open_store(place if place.endswith("/results") or place == "results" else f"{place}/results")


def links_out(store: Store, folders: Iterable[str] = RESULTS) -> list[str]:
    """Links of a local store that lead out of it, by name. `differing` leaves them out: what they point at is no
    result, and the place of an archive may have other readers. A bucket has no links."""
    if is_remote(store.uri):
        return []
    root, kinds = Path(store.uri), {*folders, *FILES}
    found = (
        path
        for place, inner, names in os.walk(root)
        for path in (Path(place, name) for name in (*inner, *names))
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve())
    )
    return sorted(
        name for path in found if (name := path.relative_to(root).as_posix()).split("/")[0] in kinds
    )


def differing(
    source: Store, target: Store, folders: Iterable[str] = RESULTS, runs: set[str] | None = None
) -> tuple[list[ObjectInfo], int]:
    """Files that are missing or different in `target`, and the number of equal files.

    Args:
        folders: result folders to compare, besides the report's files.
        runs: only these runs (and their checkpoints); None: all.

    Raises:
        UserError: if there is nothing at `source`.
    """
    files, equal, left_out = [], 0, set(links_out(source, folders))
    for folder in (*folders, ""):
        prefix = f"{folder}/" if folder else "report."
        there = {info.name: info for info in target.list(prefix)}
        for info in source.list(prefix):
            if info.name in left_out:
                continue
            parts = info.name.split("/")
            if (not folder and info.name not in FILES) or parts[-1].startswith("."):
                continue
            if runs is not None and folder in ("runs", "checkpoints") and parts[1] not in runs:
                continue
            if info.name in there and _same(source, info, target, there[info.name]):
                equal += 1
            else:
                files.append(info)
    if not files and not equal:
        raise UserError(f"there are no results at {source.uri}: check the address")
    # training.json marks a run as complete, so it goes last
    return sorted(files, key=lambda file: (file.name.endswith(f"/{RUN_FILES[0]}"), file.name)), equal


def send(source: Store, target: Store, files: Iterable[ObjectInfo]) -> None:
    """Copy the files atomically; source or target is a local folder. UserError: a storage error."""
    for file in files:
        if is_remote(source.uri):
            source.get_file(file.name, _path(target, file.name))
        else:
            target.put_file(file.name, _path(source, file.name))


def _path(store: Store, name: str) -> Path:
    return joined(Path(store.uri), name)


def _same(source: Store, ours: ObjectInfo, target: Store, theirs: ObjectInfo) -> bool:
    """Whether two files are equal: sizes first, then checksums."""
    if ours.size != theirs.size:
        return False
    if ours.checksum or theirs.checksum:
        store, there, here = (source, ours, target) if ours.checksum else (target, theirs, source)
        return store.checksum(_path(here, there.name)) == there.checksum
    return filecmp.cmp(_path(source, ours.name), _path(target, theirs.name), shallow=False)


def keep(
    tables: dict[str, str], figures: dict[str, dict[str, Any]], out: str, scale: str, dirty: bool = False
) -> list[Path]:
    """Copy tables to `out`/EXPERIMENT_SCALE/ with the specs of their figures, as `trm.results.redraw` reads them.

    What no figure of an experiment reads is left out: the runs' histories, counts by difficulty, traces, and columns of
    KEPT_IF_DRAWN. Numbers have ten significant digits, those of curves seven; columns of one value are in the sidecar,
    as `constant`.

    Args:
        tables: experiment -> path of its CSV.
        figures: experiment -> name -> the figure's spec.
        scale: of the study.
        dirty: also tables of runs whose code had local changes, which no commit holds.

    Raises:
        UserError: a table is not built, damaged or of such runs, or the folder cannot be written.
    """
    from trm.analysis.kinds import FIGURE
    from trm.analysis.tables import compact, load, save

    written = []
    for experiment, path in tables.items():
        folder = Path(out, f"{experiment}_{scale}")
        specs = [parse(FIGURE, spec, f"{experiment}: {name}") for name, spec in figures[experiment].items()]
        table, reads = load(path), {part for spec in specs for part in spec.reads}
        changed = [run["dirty"] for run in table.info["runs"].values()]
        if any(changed) and not dirty:
            raise UserError(
                f"{experiment}: {sum(changed)} of {len(changed)} runs are of code with local changes, which no commit "
                "holds: commit the changes and train these runs again, or give --dirty, which marks the table"
            )
        for part in {"bins", "guess", "halting", "traces"} & set(table.info) - reads:
            table.info[part] = type(table.info[part])()
        curves = drawn(table.curves, specs)
        wanted = json.dumps(figures[experiment])
        unused = [
            name for name in map(str, table.rows) if name.startswith(KEPT_IF_DRAWN) and name not in wanted
        ]
        rows = _rounded(table.rows.drop(columns=unused))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            small = compact(replace(table, rows=rows, curves=_rounded(curves, 7)))
            save(small, folder / "table.csv")
            text = json.dumps(figures[experiment], indent=1) + "\n"
            (folder / "figures.json").write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; name another folder") from error
        written.append(folder)
    return written


KEPT_IF_DRAWN = (
    "seconds_to_",
    "flops_to_",
    "eval_seconds",
    "eval_puzzles_per_second",
    "loss_variance",
    "grad_norm_variance",
)
"""Columns that are kept only if a figure names them: times on one machine, and variances."""


def drawn(curves: "pd.DataFrame", specs: Iterable["Figure"]) -> "pd.DataFrame":
    """The rows and columns of histories that figures show: most rows lack what only validations measure."""
    shown = dict.fromkeys(name for spec in specs for name in spec.histories if name in curves)
    axes = [name for name in AXES if name in curves]
    return curves[[*axes, *shown]].dropna(subset=list(shown), how="all") if shown else curves[axes].iloc[:0]


def _rounded(frame: "pd.DataFrame", digits: int = 10) -> "pd.DataFrame":
    """The frame with so many significant digits: what is kept in git need not hold the last bits of a mean."""
    floats = frame.select_dtypes("float64").items()
    rounded = {str(name): column.map(lambda value: float(f"{value:.{digits}g}")) for name, column in floats}
    return frame.assign(**rounded)
