"""Paired contrasts over all tables of a study: runs that differ in the named keys alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from trm.analysis.paper import Ablation
from trm.analysis.stats import Mean, mean, paired
from trm.analysis.tables import Table
from trm.study.schema import RunConfig

IGNORED = {
    "training.precision",
    "training.micro_batches",
    "data.files",
    "data.sha256",
    "data.seed",
    "data.test_puzzles",
}
"""Keys that do not change what the paper's recipe is."""


def primary(tables: Sequence[Table]) -> pd.DataFrame:
    """The primary row of every run of the study, once each."""
    rows = [table.select() for table in tables]
    if not rows:
        return pd.DataFrame({"run": []})
    return pd.concat(rows, ignore_index=True).drop_duplicates("run").reset_index(drop=True)


def config_columns(rows: pd.DataFrame) -> list[str]:
    """Configuration keys among a table's columns."""
    return [name for name in rows.columns if name.split(".")[0] in ("model", "data", "training")]


def matching(rows: pd.DataFrame, changes: Mapping[str, Any]) -> pd.DataFrame:
    """Rows whose configuration is the paper's recipe (the schema's defaults) but for `changes`."""
    recipe = RunConfig().model_dump(mode="json")
    keep = pd.Series(True, index=rows.index)
    for name in config_columns(rows):
        if name in IGNORED:
            continue
        section, _, field = name.partition(".")
        value = changes.get(name, recipe[section].get(field))
        if name == "model.position" and "model.mixer" in changes:
            continue  # the paper's attention variant is written with rope or, by its name, without
        keep &= same(rows[name], value)
    return rows[keep]


def same(column: pd.Series, value: Any) -> pd.Series:
    """Equality of a column with a configuration value; empty cells equal null and empty lists."""
    if value is None or value == [] or value == ():
        return column.isna() | (column.astype("object") == "")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (pd.to_numeric(column, errors="coerce") - value).abs() <= 1e-9 * max(1.0, abs(value))
    if isinstance(value, (list, tuple)):
        value = json.dumps(value, sort_keys=True, separators=(",", ":"))  # as tables hold them
    return column.astype("object").eq(value)


def contrast(rows: pd.DataFrame, ablation: Ablation) -> Mean | None:
    """better - worse over pairs of seeds, in the setting with the most pairs; None if no setting has both."""
    keys = list(ablation.keys)
    if not len(rows):
        return None
    others = [name for name in config_columns(rows) if name not in keys and name not in IGNORED]
    frame = rows.copy()
    frame[others] = frame[others].astype("object").where(frame[others].notna(), "")
    best: Mean | None = None
    for _, part in frame.groupby(others, sort=False, dropna=False):
        levels = sorted(part[keys].drop_duplicates().itertuples(index=False, name=None))
        pair = _pair(levels, ablation)
        if pair is None:
            continue
        change = paired(*(_series(part, keys, level) for level in pair))
        if change.n and (best is None or change.n > best.n):
            best = change
    return best


def _pair(
    levels: list[tuple[Any, ...]], ablation: Ablation
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """(worse, better): the paper's values, or the smallest and the largest that were run."""
    if ablation.better in levels and ablation.worse in levels:
        return ablation.worse, ablation.better
    if not ablation.nearest or len(levels) < 2:
        return None
    if len(ablation.keys) > 1:
        ranked = sorted(levels, key=lambda level: level[0] * (level[1] + 1))
        return ranked[0], ranked[-1]
    if ablation.worse not in levels:
        return None
    others = [level for level in levels if level != ablation.worse]
    return ablation.worse, min(others, key=lambda level: abs(level[0] - ablation.better[0]))


def _series(rows: pd.DataFrame, keys: list[str], level: tuple[Any, ...]) -> pd.Series:
    keep = pd.Series(True, index=rows.index)
    for key, value in zip(keys, level):
        keep &= rows[key] == value
    part = rows[keep]
    return pd.Series(part["exact_accuracy"].to_numpy(float), index=part["seed"].to_numpy())


def accuracy(rows: pd.DataFrame) -> Mean:
    """Mean exact accuracy over seeds with its Student interval."""
    return mean(rows["exact_accuracy"])
