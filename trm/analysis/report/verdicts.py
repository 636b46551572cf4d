"""Is a hypothesis supported? Each of its checks against the experiment's results, with the number that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from trm.analysis import stats
from trm.analysis.claims import claim
from trm.analysis.labels import lower_is_better
from trm.analysis.specs import Check
from trm.analysis.tables import Table
from trm.analysis.words import estimate, listed, measured, place, thing
from trm.errors import UserError

State = Literal["supported", "contradicted", "undecided", "not tested"]


class Verdict(NamedTuple):
    """What the results say of a hypothesis."""

    state: State
    why: str
    """The numbers that decide, in one sentence."""


def verdict(checks: Sequence[Check], table: Table | None, fits: Sequence[Mapping[str, Any]]) -> Verdict:
    """The verdict of all checks: one contradiction contradicts, all must be supported."""
    if table is None or not checks:
        return Verdict("not tested", "not run" if table is None else "no check is stated for it")
    found = [_one(check, table, fits) for check in checks]
    states = [item.state for item in found]
    why = "; ".join(item.why for item in found)
    for state in ("contradicted", "not tested", "undecided"):
        if state in states:
            return Verdict(state, why)
    return Verdict("supported", why)


def _one(check: Check, table: Table, fits: Sequence[Mapping[str, Any]]) -> Verdict:
    if check.law or check.exponent:
        return _law(check, fits)
    try:
        first = _series(table, check.where, check.metric)
        other = _series(table, check.than, check.metric) if check.than is not None else None
    except UserError as error:
        return Verdict("not tested", str(error))
    if not len(first) or (other is not None and not len(other)):
        return Verdict("not tested", "the grid has no such point")
    if other is None:
        return _level(check, stats.mean(first))
    change = stats.paired(other, first)
    made = claim(check.metric, _named(check.where), _named(check.than or {}), change, change.p)
    wanted = -1 if lower_is_better(check.metric) else 1
    state: State = "supported" if made.sign == wanted else "contradicted" if made.sign else "undecided"
    return Verdict(state, f"{thing(check.metric)} with {made.subject}: {made.text()}")


def _level(check: Check, mean: stats.Mean) -> Verdict:
    """A mean against its bounds; its interval must lie on one side."""
    at = f" at {_named(check.where)}" if check.where else ""
    shown = f"{thing(check.metric)}{at} {measured(check.metric, mean.value, mean.bounds)}"
    if mean.bounds is None:
        return Verdict("undecided", f"{shown}, one seed")
    states: list[State] = []
    for bound, sign in ((check.above, 1), (check.below, -1)):
        if bound is not None:
            low, high = sorted(sign * (end - bound) for end in mean.bounds)
            states.append("supported" if low > 0 else "contradicted" if high < 0 else "undecided")
    for state in ("contradicted", "undecided", "supported"):
        if state in states:
            return Verdict(state, shown)
    return Verdict("not tested", shown)


def _law(check: Check, fits: Sequence[Mapping[str, Any]]) -> Verdict:
    """A law of `law`, or the exponent of the best `exponent` at equal compute."""
    x = check.law or check.exponent
    for fit in fits:
        spec, group = fit["spec"], fit["groups"][0]
        if (
            spec["x"] != x
            or (check.exponent is None) == (spec["form"] == "isoflop")
            or spec["y"] != check.metric
        ):
            continue
        name = thing(str(x))
        if check.exponent:
            law = group.get("law") or {}
            if not law.get("intervals") or not law["enough_points"]:
                return Verdict("undecided", f"too few optima of {name} inside the grid")
            value, bounds = law["parameters"]["a"], law["intervals"]["a"]
        elif "forms" not in group or group["doubts"] or group["chosen"] == "constant":
            why = group.get("error") or listed(group.get("doubts", [])) or "no trend"
            return Verdict("undecided", f"no power law of {name} in {thing(check.metric)}: {why}")
        else:
            form = group["forms"][group["chosen"]]
            value, bounds = form["parameters"]["a"], form["intervals"]["a"]
        shown = f"exponent of {name} {estimate(value, bounds)}"
        low, high = check.between or (0.0, float("inf"))
        if bounds[1] < low or bounds[0] > high:
            return Verdict("contradicted", shown)
        return Verdict("supported" if low <= bounds[0] and bounds[1] <= high else "undecided", shown)
    return Verdict("not tested", f"no law of {thing(str(x))} was fitted")


def _series(table: Table, where: Mapping[str, Any], metric: str) -> pd.Series:
    rows = table.select(where, [metric])
    return rows.groupby("seed")[metric].mean()


def _named(where: Mapping[str, Any]) -> str:
    return listed([place(name, value) for name, value in where.items()])
