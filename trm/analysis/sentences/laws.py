"""Equations and sentences of fitted laws."""

from __future__ import annotations

from typing import Any

import numpy as np

from trm.analysis.fits.forms import EXPONENT
from trm.analysis.labels import label
from trm.analysis.specs import LawFigure
from trm.analysis.words import compact, interval, number, percent, percents, place, share, value_name


def equation(group: dict[str, Any], x: str, y: str = "error", width: int = 72) -> str:
    """The chosen law with its parameters and 95 % intervals, as mathtext in lines of about `width`
    characters.

    The variable is divided by a round number inside the data, so that A is the error (above the floor)
    there and not an extrapolation to x = 1.
    """
    form = group["forms"][group["chosen"]]
    left, right = label(y).symbol, label(x).symbol
    left = left if left != "x" else "y"
    reference = form.get("reference")
    if reference:
        right = f"({right} / {_mathtext(reference['x'])})"
    shape = {
        "constant": f"${left} = E$",
        "power_law": f"${left} = A\\,{right}^{{-a}}$",
        "power_law_floor": f"${left} = E + A\\,{right}^{{-a}}$",
    }[group["chosen"]]
    values = {**form["parameters"], **({"A": reference["A"]} if reference else {})}
    bounds = {**(form.get("intervals") or {}), **({"A": reference["interval"]} if reference else {})}
    parts = [f"{key} = {_parameter(key, values, bounds, y)}" for key in ("a", "A", "E") if key in values]
    lines, line = [], shape
    for part in parts:
        if len(line.replace("$", "").replace("\\", "")) + len(part) > width:
            lines.append(line)
            line = part
        else:
            line += ",  " + part
    return "\n".join([*lines, line])


def _parameter(key: str, values: dict[str, float], bounds: dict[str, Any], y: str) -> str:
    if key != "a" and label(y).percent:
        return f"{share(values[key])}{interval(bounds.get(key), 2, 100)} %"
    return number(values[key], 2) + interval(bounds.get(key))


def _mathtext(value: float) -> str:
    """A round number (1, 2 or 5 times a power of ten) inside a formula."""
    if value < 1e4:
        return f"{value:g}"
    power = int(np.floor(np.log10(value) + 1e-9))
    head = round(value / 10**power)
    return (f"{head}\\cdot" if head != 1 else "") + f"10^{{{power}}}"


def law_sentence(fit: dict[str, Any], spec: LawFigure) -> str:
    """What the fit says, for every colour."""
    sentences = []
    for group in fit["groups"]:
        head = f"At {place(fit['hue'], group['hue'])}: " if fit.get("hue") else ""
        body = group_sentence(group, spec.x, spec.y)
        sentences.append(head + (body[:1].lower() + body[1:] if head else body))
    return " ".join(sentences)


def law_answer(fit: dict[str, Any], spec: LawFigure) -> str:
    """One sentence for several colours: their exponents side by side. For one, its own sentence."""
    groups = [group for group in fit["groups"] if "forms" in group]
    hue = fit.get("hue")
    if not hue or len(groups) < 2:
        return law_sentence(fit, spec)
    parts, signs = [], set()
    for group in groups:
        form = group["forms"][group["chosen"]]
        slope, bounds = form["parameters"].get("a", 0.0), (form.get("intervals") or {}).get("a")
        signs.add(0 if group["chosen"] == "constant" else direction(slope, bounds))
        shown = "none" if group["chosen"] == "constant" else f"{number(-slope, 2)}{interval(_flip(bounds))}"
        parts.append(
            f"{shown} at {place(hue, group['hue']) if hue == 'series' else value_name(group['hue'], hue)}"
        )
    verbs = {frozenset({1}): "falls", frozenset({-1}): "rises", frozenset({0}): "shows no certain trend"}
    verb = verbs.get(frozenset(signs), "does not move alike")
    thing, over = _short(spec.y).capitalize(), label(spec.x).name.split(" (")[0]
    return f"{thing} {verb} with {over} for every {label(hue).name}; powers: {', '.join(parts)}."


def group_sentence(group: dict[str, Any], x: str, y: str = "error") -> str:
    """One law in words: how fast, between which bounds, towards which floor; or that there is none."""
    thing, over = _short(y), label(x).name.split(" (")[0]
    if "error" in group:
        return f"No law of {thing} against {over} could be fitted: {group['error']}."
    form = group["forms"][group["chosen"]]
    low, high = group["range"][0]
    low_high = f"{compact(low)} to {compact(high)}{_unit(x)}"
    span = f"between {compact(low)} and {compact(high)} {_of(x)}"
    if group["chosen"] == "constant":
        level = form["parameters"]["E"]
        shown = percent(level) if label(y).percent else number(level)
        shown += _share(form, "E", y)
        return f"{thing.capitalize()} does not change measurably {span}: it stays at {shown}.{_weak(group)}"
    slope, bounds = form["parameters"]["a"], (form.get("intervals") or {}).get("a")
    sign = direction(slope, bounds)
    power = f"{number(-slope, 2)}{interval(_flip(bounds))}"
    if sign == 0:
        text = f"{thing.capitalize()} shows no certain trend {span}: its exponent is {power}"
    else:
        verb = "falls" if sign > 0 else "rises"
        text = f"{thing.capitalize()} {verb} with the power {power} of {over} ({low_high})"
        if group["chosen"] == "power_law":
            text += (
                f", {abs(100 * (1 - 2.0**-slope)):.0f} % {'less' if sign > 0 else 'more'} for every doubling"
            )
        else:
            text += f", towards a floor of {_value(form['parameters']['E'], y)}{_share(form, 'E', y)}"
    return text + "." + _target(form, x) + _weak(group)


def _of(column: str) -> str:
    """What is counted: `unique training puzzles`, `FLOPs of training compute`."""
    text = label(column)
    name = text.name.split(" (")[0]
    unit = text.unit.split(" per ")[0]
    return name if not unit or unit in name else f"{unit} of {name}"


def _unit(column: str) -> str:
    text = label(column)
    unit = text.unit.split(" per ")[0]
    return "" if not unit or unit in text.name else f" {unit}"


def direction(slope: float, bounds: list[float] | None) -> int:
    """+1: the error falls; -1: it rises; 0: the interval of the exponent holds zero, or reaches the least exponent
    that a law with a floor may have, which is no law. Without an interval, the sign alone."""
    least = min([slope, *(bound for bound in bounds or [] if bound is not None)])
    if 0 < least <= 1.01 * EXPONENT[0]:
        return 0
    if bounds is None or any(bound is None for bound in bounds):
        return int(np.sign(slope))
    return 1 if bounds[0] > 0 else -1 if bounds[1] < 0 else 0


def _short(column: str) -> str:
    return "error" if column == "error" else label(column).name.split(" (")[0]


def _flip(bounds: list[float] | None) -> list[float] | None:
    return None if bounds is None or None in bounds else [-bounds[1], -bounds[0]]


def _value(value: float, y: str) -> str:
    return percent(value, 2) if label(y).percent else number(value)


def _share(form: dict[str, Any], name: str, y: str) -> str:
    bounds = (form.get("intervals") or {}).get(name)
    return percents(bounds, 2) if label(y).percent else interval(bounds)


def _target(form: dict[str, Any], x: str) -> str:
    """What the target accuracy costs."""
    target = form.get("target")
    if not target:
        return ""
    unit = label(x).unit or label(x).name
    goal = percent(target["accuracy"], 0)
    if target["x"] is None:
        return f" By this law {goal} accuracy is never reached."
    bounds = target.get("interval") or [None, None]
    shown = (
        f" [{compact(bounds[0])}, {'∞' if bounds[1] is None else compact(bounds[1])}]" if bounds[0] else ""
    )
    return f" {goal} accuracy needs {compact(target['x'])}{shown} {unit}."


def _weak(group: dict[str, Any]) -> str:
    """What the reader must not overlook: too few points, unsure forms, no interval."""
    form = group["forms"][group["chosen"]]
    said = []
    if not form["borne"]:
        said.append(f"{group['points']} points do not test a form with {len(form['parameters'])} parameters")
    if group.get("interval") is None:
        said.append("one seed a point gives no interval")
    if (form.get("failed_share") or 0) > 0.05:
        said.append(f"{100 * form['failed_share']:.0f} % of the refits failed")
    if (form.get("bound_share") or 0) > 0.05:
        said.append(f"in {100 * form['bound_share']:.0f} % of the refits the exponent ran into its bound")
    return f" ({'; '.join(said)[:1].upper()}{'; '.join(said)[1:]}.)" if said else ""
