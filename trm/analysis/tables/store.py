"""A results table on disk and in memory, and the selection of its rows for a figure or fit."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trm.analysis import axes
from trm.analysis.words import listed, noun
from trm.errors import UserError
from trm.io import dump, write_text
from trm.study.records import check_checksum, check_name, read_record, sealed


@dataclass
class Table:
    """One experiment at one scale."""

    rows: pd.DataFrame
    """One row for each run x evaluation x result (split, policy, supervision steps, restarts)."""
    curves: pd.DataFrame
    """Histories, thinned: run, step, rows, seconds and every measured column."""
    info: dict[str, Any] = field(default_factory=dict)
    """The sidecar: names, points, what is missing, provenance, halting, traces."""

    @property
    def experiment(self) -> str:
        return str(self.info.get("experiment", ""))

    def select(
        self, where: Mapping[str, Any] | None = None, columns: Sequence[str] = (), *, plain: bool = False
    ) -> pd.DataFrame:
        """The rows to show or fit, restricted to `where`.

        By default the primary row of each run (test split, reference policy). If `columns` or `where` name
        `evaluation.*`, the main row of every evaluation; if they name a policy, split or test-time compute, every row
        of it. Numbers are compared as numbers; null matches an empty cell.

        Args:
            plain: only the rows of the recipe itself, if blocks of the grid set something else.

        Raises:
            UserError: `where` or `columns` name a column the table lacks.
        """
        where = dict(where or {})
        names = [*where, *columns]
        for name in names:
            if name not in self.rows.columns:
                raise UserError(
                    f"the table of {self.experiment} has no column {name}; it has: "
                    + ", ".join(sorted(self.rows.columns))
                )
        rows = self.rows
        if any(name in ("policy", "split", "restarts", "eval_steps", "flops_per_puzzle") for name in names):
            for name, value in axes.SHOWN.items():
                if name not in where:
                    rows = rows[rows[name] == value]
            settings = [name for name in names if name.startswith("evaluation.")]
            if "label" in names:  # points may differ in their evaluation alone
                known = self.info.get("coordinates", [])
                settings += [name for name in known if name.startswith("evaluation.") and name in rows]
            rows = rows.drop_duplicates(["run", "split", "policy", "eval_steps", "restarts", *settings])
        elif any(name.startswith("evaluation.") for name in names):
            rows = rows[rows["main"]]
        else:
            rows = rows[rows["primary"]]
        for name, value in where.items():
            column = rows[name]
            rows = rows[
                column.isin([cell for cell in column.unique().tolist() if axes.is_value(cell, value)])
            ]
        if plain and len(rows):
            series = rows["series"].astype("object")
            rows = rows[series.isna() if series.isna().any() else series == series.mode().iloc[0]]
        return rows.copy()

    def by_seed(self, where: Mapping[str, Any], metric: str) -> pd.Series:
        """The mean of a metric over the rows of each seed. UserError: the table lacks a column."""
        means: pd.Series = self.select(where, [metric]).groupby("seed")[metric].mean()
        return means

    def sides(self, metric: str, *wheres: Mapping[str, Any]) -> tuple[list[pd.Series], str]:
        """A metric of several selections at the seeds and points that all have (`alike`), each indexed by seed."""
        parts = [self.select(where, [metric]).assign(side=at) for at, where in enumerate(wheres)]
        rows, lost = self.alike(pd.concat(parts), "side") if all(map(len, parts)) else (pd.concat(parts), "")
        return [rows[rows["side"] == at].set_index("seed")[metric] for at in range(len(wheres))], lost

    def alike(self, rows: pd.DataFrame, *by: str) -> tuple[pd.DataFrame, str]:
        """The rows of the seeds and other coordinates that every group `by` has, and a sentence on those left out: a
        group that lacks a point would differ from the others by the level of that point.

        What varies with the group alone is compared, not paired. UserError: the groups share nothing.
        """
        others = self._crossed(rows, *by)
        if not others:
            return rows, ""
        group = rows.groupby(list(by), dropna=False, sort=False).ngroup()
        cells = [*({"seed"} - {*by}), *others]
        whole = group.groupby(rows.groupby(cells, dropna=False, sort=False).ngroup()).transform("nunique")
        whole = whole == group.nunique()
        every, own = (listed([noun(name) for name in names]) for names in (by, cells))
        if not whole.any():
            raise UserError(
                f"{self.experiment} measured no {own} with every {every}, so nothing can be compared: leave some out "
                f"by `where`, or set `hue: {others[0]}`"
            )
        lost = f"{int((~whole).sum())} of {len(rows)} measurements, whose {own} not every {every} has"
        return rows[whole], "" if whole.all() else f"Left out: {lost}."

    def _crossed(self, rows: pd.DataFrame, *by: str) -> list[str]:
        """The coordinates that tell the rows of a seed in one group apart; of several that do, those whose values most
        groups have."""
        known = (*self.info.get("coordinates", []), "series", "policy", "split", "eval_steps", "restarts")
        names = [name for name in known if name in rows and name not in by]
        groups = rows.assign(_group=rows.groupby(list(by), dropna=False, sort=False).ngroup())
        names.sort(key=lambda name: -groups.groupby(name, dropna=False)["_group"].nunique().mean())
        chosen: list[str] = []
        for name in names:
            keys = ["seed", *by, *chosen]
            if rows.duplicated([*keys, name]).sum() < rows.duplicated(keys).sum():
                chosen.append(name)
        return chosen

    def extra(self, part: str, row: pd.Series) -> Any:
        """What the sidecar holds of a row's evaluation: its bins, halting, tasks or guess; None: nothing."""
        known = self.info.get(part, {})  # of earlier versions one of each run
        return known.get(f"{row['run']}/{row['evaluation']}") or known.get(row["run"])

    def implied_hue(self, where: Mapping[str, Any], *taken: str) -> str | None:
        """The column that must separate the rows of `where` beside the variables `taken`."""
        return axes.implied_hue(*self._points(where, taken[:1], *taken), *taken)

    def hue_of_law(self, where: Mapping[str, Any], x: str, hue: str | None = None) -> str | None:
        """The column that separates laws of `x` over the rows of `where`. UserError: one does not suffice."""
        taken = [name for name in (x, hue) if name]
        return axes.hue_of_law(*self._points(where, taken, *taken), x, hue)

    def _points(self, where: Mapping[str, Any], columns: Sequence[str], *taken: str) -> tuple[Any, list[str]]:
        """What `axes` compares of the rows of a selection, and the axes of the grid."""
        rows = self.select(where, columns)
        known = [str(name) for name in self.info.get("coordinates", []) if name in rows]
        names = dict.fromkeys([*known, "series", "point", *(name for name in taken if name in rows)])
        return rows[[*names]].drop_duplicates().to_dict("records"), known


DEPTH = 64
"""Supervision steps at test time by which an experiment compares its runs, if it names none."""


def mark(rows: pd.DataFrame, wanted: int | None = None) -> int | None:
    """Mark the main row of every evaluation, and a run's primary one, which that of its first evaluation is: fixed
    policy, test split, and the same number of supervision steps for all runs, since what is compared must not move the
    ruler. The accuracy on training puzzles is that after as many steps.

    Args:
        rows: of a table; gets main, primary, train_exact_accuracy, train_test_gap.
        wanted: the steps; None: DEPTH, else the most below it that every evaluation measured.

    Returns:
        The steps; None: the evaluations share none, so each is read at its training depth.

    Raises:
        UserError: the `wanted` steps were not measured everywhere.
    """
    fixed = rows[rows["policy"] == "fixed"]
    keys = ["point", "run", "evaluation"]
    tested = dict(list(fixed[fixed["split"] == "test"].groupby(keys)["eval_steps"]))
    shared = set.intersection(*(set(part) for part in tested.values())) if tested else set()
    if wanted is not None and wanted not in shared:
        raise UserError(
            f"test_steps: {wanted} is not measured by every evaluation: add it to evaluation.unroll"
        )
    steps = max((at for at in shared if at <= (wanted or DEPTH)), default=None)
    own = rows["model.halt_max_steps"]
    lines = []
    for at, part in tested.items():
        known = part[part == (own[part.index] if steps is None else steps)]
        line: Any = known.index[0] if len(known) else part.idxmax()
        lines.append({**dict(zip(keys, at)), "eval_steps": rows["eval_steps"][line], "_line": line})
    chosen = pd.DataFrame(lines, columns=[*keys, "eval_steps", "_line"])
    rows["main"] = rows.index.isin(chosen["_line"])
    rows["primary"] = rows["main"] & rows["evaluation.first"].astype(bool)
    trained = fixed[fixed["split"] == "train"].drop_duplicates([*keys, "eval_steps"], keep="first")
    same = chosen.merge(trained[[*keys, "eval_steps", "exact_accuracy"]], on=[*keys, "eval_steps"])
    found = rows[keys].merge(same, on=keys, how="left")["exact_accuracy"].to_numpy(float)
    rows["train_exact_accuracy"] = found
    rows["train_test_gap"] = 100 * (found - rows["exact_accuracy"].to_numpy(float))
    return None if steps is None else int(steps)


def paths(out: str | Path) -> tuple[Path, Path, Path]:
    """The table's three files: rows, sidecar, curves."""
    return Path(out), Path(f"{out}.json"), Path(f"{out}.curves.csv")


FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""First characters by which a spreadsheet takes a text cell for a formula, and the quote that hides them."""


def _texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """The frame with `change` applied to every text cell."""
    columns = frame.select_dtypes(include=["object", "string"]).items()

    def cell(value: Any) -> Any:
        return change(value) if isinstance(value, str) else value

    return frame.assign(**{str(name): column.map(cell) for name, column in columns})


def save(table: Table, out: str | Path) -> None:
    """Write the three files; `info` gets the table's name, and the fingerprints of the rows and of the curves. A text
    cell that a spreadsheet would run as a formula gets a quote before it, which `load` takes away."""
    rows, sidecar, curves = paths(out)
    table.info["name"] = rows.stem
    for key, path, frame in (("fingerprint", rows, table.rows), ("curves_sha256", curves, table.curves)):
        quoted = _texts(frame, lambda text: f"'{text}" if text.startswith(FORMULA) else text)
        text = quoted.to_csv(index=False, lineterminator="\n")
        table.info[key] = hashlib.sha256(text.encode()).hexdigest()
        write_text(path, text)
    write_text(sidecar, dump(sealed(table.info), compact=True))


def compact(table: Table) -> Table:
    """The table with its columns of one value in the sidecar, as `constant`, and what all runs share said once, as
    `every_run`, from where `load` takes them."""
    rows = table.rows
    same = [name for name in rows if name != "run" and rows[name].nunique(dropna=False) == 1]
    first = rows[same].astype("object").iloc[0]
    constant = first.where(first.notna(), None).to_dict()
    runs = table.info["runs"]
    one, *others = runs.values()
    shared = {key: value for key, value in one.items() if all((key, value) in run.items() for run in others)}
    apart = {name: {key: run[key] for key in run if key not in shared} for name, run in runs.items()}
    said_once = {"constant": constant, "every_run": shared, "runs": apart}
    return Table(rows.drop(columns=same), table.curves, {**table.info, **said_once})


def load(path: str | Path) -> Table:
    """Read a table written by `save`. UserError: a file is missing or damaged, has changed, or is another table's."""
    rows, sidecar, curves = paths(path)
    info = read_record(sidecar)
    check_name(rows, rows.stem, info.get("name", rows.stem))  # earlier versions wrote no name
    check_checksum(rows, info.get("fingerprint"))
    check_checksum(curves, info.get("curves_sha256"))
    kinds = dict.fromkeys(info.get("text_columns", []), "str")
    try:
        found = pd.read_csv(rows, dtype=kinds, keep_default_na=False, na_values=[""])
        both = (found, pd.read_csv(curves, low_memory=False))
        table, history = (_texts(frame, lambda text: text.removeprefix("'")) for frame in both)
        same = {name: np.nan if value is None else value for name, value in info.pop("constant", {}).items()}
        table = pd.concat([table, pd.DataFrame(same, index=table.index)], axis=1)
        for name in ("primary", "main", "evaluation.first", "finished"):
            table[name] = table[name].astype(str) == "True"
        shared = info.pop("every_run", {})
        info["runs"] = {name: {**shared, **run} for name, run in info["runs"].items()}
        table["run"], table["seed"], history["run"]
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} does not exist: run `python -m trm table` first") from None
    except KeyError as error:
        raise UserError(f"{rows} is damaged (no {error}): delete it and build it again") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{rows} is damaged ({error}): delete it and build it again") from None
    return Table(table, history, info)


def _one_point(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of several experiments with points numbered through; points of two that share a run are one."""
    own = rows.groupby(["experiment", "point"], sort=False).ngroup()
    shared = own.groupby([rows["run"], rows["evaluation"]]).transform("min")
    return rows.assign(point=shared.groupby(own).transform("min"))


def merge(tables: Sequence[Table], experiments: Sequence[str] = ()) -> Table:
    """Several tables as one; rows of a run that two experiments share count once.
    `experiments`: take the tables of these; empty: all. UserError: an experiment has no table."""
    known = {table.experiment: table for table in tables}
    for name in experiments:
        if name not in known:
            raise UserError(f"no --table holds experiment {name}; given: {listed(list(known)) or 'none'}")
    tables = [known[name] for name in experiments] or tables
    if len(tables) == 1:
        return tables[0]
    keys = ["run", "evaluation", "split", "policy", "eval_steps", "restarts"]
    rows = _one_point(pd.concat([table.rows for table in tables], ignore_index=True))
    rows = rows.drop_duplicates(keys, ignore_index=True)
    curves = pd.concat([table.curves for table in tables], ignore_index=True).drop_duplicates(["run", "step"])
    infos = [table.info for table in tables]
    steps = infos[0].get("test_steps")
    if any(info.get("test_steps") != steps for info in infos):  # one ruler for all
        steps = mark(rows)
    joined = "".join(str(info.get("fingerprint", "")) for info in infos)
    info = {
        **infos[0],
        "experiment": "+".join(table.experiment for table in tables),
        "test_steps": steps,
        "fingerprint": hashlib.sha256(joined.encode()).hexdigest(),
        "missing": [item for info in infos for item in info.get("missing", [])],
        "commits": sorted({commit for info in infos for commit in info.get("commits", [])}),
        "halting": {key: value for info in infos for key, value in info.get("halting", {}).items()},
        "runs": {key: value for info in infos for key, value in info.get("runs", {}).items()},
        "traces": [trace for info in infos for trace in info.get("traces", [])],
    }
    return Table(rows, curves.reset_index(drop=True), info)
