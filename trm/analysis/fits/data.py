"""From a table to the observations of a fit: variables, log errors, groups, exclusions with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from trm.analysis.fits.forms import Array
from trm.analysis.labels import label
from trm.analysis.specs import SAME, FitSpec
from trm.analysis.stats import frontier
from trm.analysis.tables import Table
from trm.analysis.words import count, goal, percent
from trm.errors import UserError

SATURATED = 0.90
"""Points with a higher mean error solve almost nothing: they are shown, not fitted."""


@dataclass
class Data:
    """Observations of one fit."""

    x: Array
    """Variables [v, N], in the data's own units (plus the label's offset)."""
    y: Array
    """Measurements [N], positive."""
    group: np.ndarray
    """Grid point of each observation [N]."""
    runs: list[str]
    tested: Array
    """Test puzzles behind each observation [N] (0: not a share)."""
    exclusions: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seeds: np.ndarray | None = None
    """Seed of each observation [N]; None: not known."""
    candidates: Data | None = None
    """For an envelope: all points that it was chosen from."""

    def __post_init__(self) -> None:
        self.excluded = np.zeros(len(self.runs), dtype=bool)
        """Rows of `exclusions` [N]: rows, not runs, because a run may have one row per evaluation setting."""

    @property
    def log_y(self) -> Array:
        return np.log(self.y)

    @property
    def points(self) -> int:
        """Points at different places: what a form's shape is tested by."""
        return min(len(np.unique(self.group)), int(np.unique(self.x, axis=1).shape[1]))

    def means(self) -> tuple[Array, Array, Array]:
        """Grid points [v, P], the geometric mean of their observations [P] and how many these are [P], by the first
        variable."""
        members = [self.group == key for key in np.unique(self.group)]
        x = np.stack([self.x[:, here].mean(axis=1) for here in members], axis=1)
        y = np.array([np.exp(self.log_y[here].mean()) for here in members])
        order = np.lexsort(x[::-1])
        return x[:, order], y[order], np.array([int(here.sum()) for here in members])[order]

    def without(self, rows: np.ndarray) -> Data:
        """The observations outside the boolean mask `rows`."""
        keep = ~rows
        runs = [run for run, kept in zip(self.runs, keep) if kept]
        arrays = self.x[:, keep], self.y[keep], self.group[keep]
        seeds = None if self.seeds is None else self.seeds[keep]
        return Data(*arrays, runs, self.tested[keep], self.exclusions, self.notes, seeds)


def gather(table: Table, spec: FitSpec) -> list[tuple[Any, Data]]:
    """The observations of each hue value (one entry, None, without hue). UserError: a column is missing, or nothing can
    be fitted."""
    columns = [name for name in (spec.x, spec.second, spec.hue) if name]
    rows = table.select(spec.where, columns, plain=bool(spec.second))
    if not len(rows):
        raise UserError(f"no row of {table.experiment} matches {spec.where}: nothing to fit")
    hue = hue_of(table, spec)
    if hue is None:
        return [(None, observations(rows, spec))]
    groups = [(value, observations(part, spec)) for value, part in rows.groupby(hue, sort=True, dropna=False)]
    return sorted(groups, key=lambda item: not pd.isna(item[0]))  # the recipe itself (empty) comes first


def hue_of(table: Table, spec: FitSpec) -> str | None:
    """The column that splits the fit: the spec's, or what the table calls for (laws of two variables or of an envelope:
    none)."""
    return spec.hue if spec.second or spec.best else table.hue_of_law(spec.where, spec.x, spec.hue)


def observations(rows: pd.DataFrame, spec: FitSpec) -> Data:
    """Rows -> observations; unusable ones become exclusions with their reason."""
    names = [name for name in (spec.x, spec.second) if name]
    for name in names:
        if not pd.api.types.is_numeric_dtype(rows[name]):
            raise UserError(
                f"{name} is not a number in {rows['experiment'].iloc[0]}: a law cannot be fitted to it"
            )
    x = rows[names].to_numpy(float).T + np.array([[label(name).offset] for name in names])
    if spec.form == "repeated_data":
        x[1] -= label(spec.second or "").offset
    y = pd.to_numeric(rows[spec.y], errors="coerce").to_numpy(float, copy=True)
    is_share = spec.y == "error"
    tested = rows["puzzles"].to_numpy(float) if is_share else np.zeros(len(rows))
    group = rows.groupby([name for name in SAME if name in rows], sort=True, dropna=False).ngroup().to_numpy()
    data = Data(x, y, group, rows["run"].tolist(), tested, seeds=rows["seed"].to_numpy())
    _exclude(data, ~rows["finished"].to_numpy(bool), "the run did not finish")
    _exclude(data, ~np.isfinite(y), "target not reached" if "_to_" in spec.y else "not measured")
    if spec.form != "repeated_data":
        _exclude(data, (x <= 0).any(axis=0), "not positive: no place on a log axis")
    if is_share:
        _shares(data)
    else:
        _exclude(data, y <= 0, "not positive: no logarithm")
    usable = data.without(data.excluded)
    return envelope(usable) if spec.best and len(usable.runs) else usable


def envelope(data: Data) -> Data:
    """The grid points that no cheaper one beats; `candidates` holds them all."""
    beaten = ~on_envelope(data, data.log_y)
    _exclude(data, beaten, "another point is better at no higher cost")
    return replace(data.without(beaten), candidates=data)


def on_envelope(data: Data, log_y: Array) -> np.ndarray:
    """Which observations [N] belong to points that no cheaper one beats, if their values were log_y [N]."""
    keys = np.unique(data.group)
    cost = np.array([data.x[0, data.group == key].mean() for key in keys])
    level = np.array([log_y[data.group == key].mean() for key in keys])
    return np.isin(data.group, keys[frontier(cost, -level)])


def _exclude(data: Data, rows: np.ndarray, why: str) -> None:
    for i in np.flatnonzero(rows & ~data.excluded):
        value = float(data.y[i]) if np.isfinite(data.y[i]) else None
        data.exclusions.append({"run": data.runs[i], "x": data.x[:, i].tolist(), "y": value, "why": why})
    data.excluded |= rows


def _shares(data: Data) -> None:
    """Leave out points without an error and points that solve almost nothing: neither informs a law."""
    for key in np.unique(data.group):
        rows = data.group == key
        mean = float(np.nanmean(data.y[rows])) if np.isfinite(data.y[rows]).any() else np.nan
        if mean > SATURATED:
            _exclude(data, rows, f"error above {goal(SATURATED)}")
        elif mean == 0:
            _exclude(data, rows, "no seed makes an error: below what the test set resolves")
    zero = (data.y == 0) & (data.tested > 0)
    if zero.any():
        data.y[zero] = 0.5 / data.tested[zero]
        data.notes.append(
            f"{count(int(zero.sum()), 'run')} without an error counted as half a test puzzle wrong "
            f"({percent(0.5 / data.tested[zero].max())})"
        )
