"""Is a hypothesis supported? Each of its checks against the experiment's results, with the number that decides."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from trm.analysis.findings import compared, contrast, level
from trm.analysis.kinds.isoflop import BUDGET
from trm.analysis.kinds.restarts import attempts_of
from trm.analysis.labels import label
from trm.analysis.laws import findings_of_fit
from trm.analysis.lazy import common
from trm.analysis.specs import Check
from trm.analysis.tables import Table
from trm.analysis.words import estimate, goal, listed, measured, noun, number, setting_in_words
from trm.errors import UserError

State = Literal["supported", "contradicted", "undecided", "not tested"]


class Verdict(NamedTuple):
    """What the results say of a hypothesis."""

    state: State
    why: str
    """The numbers that decide, a sentence for each check."""


def verdict(checks: Sequence[Check], table: Table | None, fits: Sequence[Mapping[str, Any]]) -> Verdict:
    """The verdict of all checks."""
    if table is None or not checks:
        return Verdict("not tested", "not run." if table is None else "no check is stated for it.")
    return _all([_one(check, table, fits) for check in checks])


def _all(found: Sequence[Verdict]) -> Verdict:
    """Of several verdicts: one contradiction contradicts, all must be supported."""
    states = [item.state for item in found]
    why = " ".join(item.why.removesuffix(".") + "." for item in found)
    for state in ("contradicted", "not tested", "undecided"):
        if state in states:
            return Verdict(state, why)
    return Verdict("supported", why)


def _one(check: Check, table: Table, fits: Sequence[Mapping[str, Any]]) -> Verdict:
    if check.law or check.exponent:
        return _law(check, fits)
    try:
        return _level(check, table) if check.than is None else _difference(check, check.than, table)
    except UserError as error:
        return Verdict("not tested", str(error))


def _difference(check: Check, than: Mapping[str, Any], table: Table) -> Verdict:
    """Rows that must beat others, in pairs of seeds."""
    (other, first), lost = table.sides(check.metric, than, check.where)
    if not len(first) or not len(other):
        return Verdict("not tested", "the grid has no such point")
    shared = {name: value for name, value in check.where.items() if than.get(name) == value}
    subject, against = (
        _named({name: value for name, value in side.items() if name not in shared})
        for side in (check.where, than)
    )
    made = compared(check.metric, {0: contrast(other, first, subject, against, _named(shared))})[0]
    wanted = -1 if label(check.metric).lower else 1
    state: State = "supported" if made.sign == wanted else "contradicted" if made.sign else "undecided"
    return Verdict(state, f"{made.text} {lost}".strip())


def _level(check: Check, table: Table) -> Verdict:
    """A mean against its bounds; its interval must lie on one side."""
    rows, lost = table.alike(table.select(check.where, [check.metric]), "seed")
    if not len(rows):
        return Verdict("not tested", "the grid has no such point")
    seeds = rows.groupby("seed")[check.metric].mean()
    mean = common.mean_of(seeds, check.metric, float(rows["puzzles"].iloc[0]))
    shown = level(check.metric, _named(check.where), mean).text.removesuffix(".")
    bounds = (("above", check.above), ("below", check.below))
    shown += f" (expected: {listed([f'{side} {_bound(check.metric, at)}' for side, at in bounds if at is not None])})"
    shown += f". {lost}".removesuffix(".") * bool(lost)
    if mean.n < 2:
        return Verdict("undecided", f"{shown}, one seed")
    if mean.bounds is None:
        return Verdict("undecided", f"{shown}, {mean.n} equal values")
    sides: list[Verdict] = []
    for bound, sign in ((check.above, 1), (check.below, -1)):
        if bound is not None:
            low, high = sorted(sign * (end - bound) for end in mean.bounds)
            state: State = "supported" if low > 0 else "contradicted" if high < 0 else "undecided"
            sides.append(Verdict(state, ""))
    return Verdict(_all(sides).state, shown)


def _bound(metric: str, value: float) -> str:
    return goal(value) if label(metric).percent else measured(metric, value)


def _law(check: Check, fits: Sequence[Mapping[str, Any]]) -> Verdict:
    """A law of `law`, or the exponent of the best `exponent` at equal compute."""
    x, second = check.law or check.exponent, BUDGET if check.exponent else None
    wanted = ("isoflop" if check.exponent else "", x, second, check.metric, check.where)
    for fit in fits:
        spec = fit["spec"]
        form = spec["form"] if spec["form"] == "isoflop" else ""
        if (form, spec["x"], spec["second"], spec["y"], spec["where"]) == wanted:
            return _all([_exponent(check, {**fit, "groups": [group]}) for group in fit["groups"]])
    return Verdict("not tested", f"no law of {noun(str(x))} was fitted to these rows")


def _exponent(check: Check, fit: Mapping[str, Any]) -> Verdict:
    """The exponent of a fit's only group against its bounds."""
    made = findings_of_fit(fit)[0]
    if made.kind not in ("power", "optimum") or not made.interval or made.why:
        return Verdict("undecided", made.text)
    sign = 1 if check.exponent else -1
    bounds = check.between or (0.0, float("inf"))
    wanted = sorted(sign * bound for bound in bounds)
    expected = f" (expected: {number(wanted[0], 2)} to {number(wanted[1], 2)})" * bool(check.between)
    text = made.text.removesuffix(".") + f"{expected}."
    state = _within(sorted(sign * end for end in made.interval), bounds)
    for ruler in fit["groups"][0].get("rulers", ()):
        if state != "undecided" and state != _within(ruler["interval"], bounds):
            at = f"{ruler['steps']} test steps" if ruler["steps"] else "each run's best test steps"
            other = estimate(ruler["value"], ruler["interval"])
            return Verdict("undecided", f"{text} At {at} it is {other}.")
    return Verdict(state, text)


def _within(interval: Sequence[float] | None, bounds: tuple[float, float]) -> State:
    """Whether an interval lies within bounds, outside, or across one."""
    if interval is None or interval[1] < bounds[0] or interval[0] > bounds[1]:
        return "contradicted" if interval else "undecided"
    return "supported" if bounds[0] <= interval[0] and interval[1] <= bounds[1] else "undecided"


def _named(where: Mapping[str, Any]) -> str:
    """Settings in words; a policy and its number of attempts are one: `any of 8 attempts`."""
    where = dict(where)
    several = [words] if (words := attempts_of(where)) else []
    rest = {name: value for name, value in where.items() if not several or name not in ("policy", "restarts")}
    return listed([*several, *(setting_in_words(name, value) for name, value in rest.items())])
