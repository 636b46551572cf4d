"""What a fit says, as claims: laws of one and of two variables, critical batches, best values and their laws."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trm.analysis.claims import Bounds, Claim, Outcome, span, verdict_on
from trm.analysis.labels import label
from trm.analysis.specs import VARIABLES
from trm.analysis.words import estimate, goal, listed, measured, noun, number, setting_in_words

Fit = Mapping[str, Any]
"""The content of a fit.json."""
Group = Mapping[str, Any]
"""One of its groups: the fit of one colour."""


def supported(group: Group) -> bool:
    """Whether the points support a law (a constant is none)."""
    return "forms" in group and group["chosen"] != "constant" and not group["doubts"]


def chosen(group: Group) -> dict[str, Any]:
    """The form shown."""
    return dict(group["forms"][group["chosen"]])


def floor_shown(group: Group) -> bool:
    """Whether the interval of the floor E stays clear of 0: above 1 % of the lowest mean."""
    low = ((chosen(group).get("intervals") or {}).get("E") or [0.0])[0]
    return bool(low > 0.01 * min(group["means"]["y"]))


def _floor(group: Group, metric: str) -> str:
    """What a law says of its floor, at the end of a clause."""
    if not floor_shown(group):
        return "; no floor is established (its interval includes 0)"
    form = chosen(group)
    return f", towards a floor of {measured(metric, form['parameters']['E'], form['intervals'].get('E'))}"


def slope(form: Mapping[str, Any], key: str = "a") -> tuple[float, Bounds]:
    """An exponent with the sign of the slope, and its interval."""
    bounds = (form.get("intervals") or {}).get(key)
    return -form["parameters"][key], None if bounds is None or None in bounds else (-bounds[1], -bounds[0])


def claims_of_fit(fit: Fit) -> list[Claim]:
    """All claims of a fit, for every colour."""
    spec, hue = fit["spec"], fit.get("hue")
    found = []
    for group in fit["groups"]:
        where = setting_in_words(hue, group["hue"]) if hue else ""
        if spec["form"] in ("optimum", "isoflop"):
            found += _optima(group, spec)
        elif spec["form"] in VARIABLES:
            found += _two(group, spec)
        elif spec["form"] == "critical_batch":
            found.append(_critical(group, spec, where))
        else:
            found.append(law_claim(group, spec["x"], spec["y"], where))
    return found


def law_claim(group: Group, x: str, y: str = "error", where: str = "") -> Claim:
    """A law of one variable: its exponent, or how far the metric changes and why that is no law."""
    over = noun(x)
    if "error" in group:
        return Claim(y, over, "", math.nan, None, "none", "change", more=group["error"], place=where)
    form, values = chosen(group), group["means"]["y"]
    unit = label(x).unit.split(" per ")[0]
    own = unit and unit not in over
    low, high = group["range"][0]
    over_range, law_range = (span(low, high, name) for name in (unit if own else over, unit if own else ""))
    if group["chosen"] == "constant":
        bounds = (form.get("intervals") or {}).get("E")
        ends = (values[0], values[-1])
        return Claim(
            y, over, over_range, form["parameters"]["E"], bounds, "none", "change", ends=ends, place=where
        )
    if group["doubts"]:
        return _change(group, Claim(y, over, over_range, 0.0, None, "open", "change", place=where))
    value, bounds = slope(form)
    verdict: Outcome = "lower" if value < 0 else "higher"
    more = _floor(group, y)
    if group["chosen"] == "power_law":
        part = abs(100 * (1 - 2.0**value))
        more = f", {part:.0f} % {'less' if value < 0 else 'more'} for every doubling"
    notes = _predicted(form, y) + _price(form, x)
    return Claim(y, over, law_range, value, bounds, verdict, "power", more=more, notes=notes, place=where)


def _change(group: Group, claim: Claim) -> Claim:
    """How far the metric changes between the ends of the range, in logs, with the pooled seed spread as its noise."""
    means, spread = group["means"], group.get("seed_spread")
    first, last = means["y"][0], means["y"][-1]
    value, bounds, verdict = math.log(last / first), None, claim.verdict
    if spread and len(means["x"]) == 1:
        half = 2.2 * spread * (1 / means["seeds"][0] + 1 / means["seeds"][-1]) ** 0.5
        bounds = (value - half, value + half)
        verdict = verdict_on(bounds)
    fields = vars(claim) | {"value": value, "interval": bounds, "verdict": verdict, "ends": (first, last)}
    return Claim(**fields | {"more": listed(group["doubts"])})


def _predicted(form: Mapping[str, Any], y: str) -> str:
    out = form.get("held_out") or {}
    if not out.get("interval"):
        return ""
    shown = measured(y, out["predicted"], out["interval"])
    return (
        f" A fit without the largest point predicts {shown} there; measured: {measured(y, out['observed'])}."
    )


def _price(form: Mapping[str, Any], x: str) -> str:
    """What the target accuracy costs."""
    target = form.get("target")
    if not target:
        return ""
    if target["x"] is None:
        return f" By this law {goal(target['accuracy'])} accuracy is never reached."
    low, high = target.get("interval") or [None, None]
    bounds = f" [{number(low, 2)}, {'∞' if high is None else number(high, 2)}]" if low else ""
    return f" {goal(target['accuracy'])} accuracy needs {number(target['x'], 2)}{bounds} {label(x).unit or noun(x)}."


def elsewhere(fit: Fit, others: Sequence[Fit]) -> str:
    """In which other variables the same runs follow a law. These move together, so that an exponent in one of them
    counts only beside a law of the first."""
    parts = []
    if others and not supported(fit["groups"][0]):
        names = listed([noun(other["spec"]["x"]) for other in others])
        return f" Nor is a power law of {names} claimed, which change with it in the same runs."
    for fit in others:
        group, x = fit["groups"][0], noun(fit["spec"]["x"])
        law = f"exponent {estimate(*slope(chosen(group)))}" if supported(group) else ""
        parts.append(f"{x}, {law or f'no law ({why_not(group)})'}")
    return f" The same runs against {'; against '.join(parts)}." if parts else ""


def why_not(group: Group) -> str:
    """Why no law is claimed; empty: one is."""
    if supported(group):
        return ""
    return str(group.get("error") or listed(group["doubts"]) or "no trend")


def _two(group: Group, spec: Mapping[str, Any]) -> list[Claim]:
    """E + A N^-a + B C^-b, or E + A D'^-a: an exponent for each variable, and what copies are worth."""
    joint = spec["form"] == "joint"
    names = [noun(spec["x"]), noun(spec["second"])] if joint else ["the effective number of puzzles"]
    if not supported(group):
        return [Claim(spec["y"], listed(names), "", math.nan, None, "none", "change", more=why_not(group))]
    form = chosen(group)
    found = []
    for name, key in zip(names, ("a", "b")):
        value, bounds = slope(form, key)
        verdict: Outcome = "lower" if value < 0 else "higher"
        more = _floor(group, spec["y"]) if name == names[-1] else ""
        found.append(Claim(spec["y"], name, "", value, bounds, verdict, "power", more=more))
    if not joint:
        worth, bounds = form["parameters"]["R*"], (form.get("intervals") or {}).get("R*")
        found.append(
            Claim("copies_worth", "", "", worth, bounds, "none", "level", more=", however many there are")
        )
    return found


def _critical(group: Group, spec: Mapping[str, Any], where: str) -> Claim:
    """The batch beyond which more puzzles a step save few steps."""
    target = f"the target of {spec['y'].removeprefix('steps_to_')} %"
    fields: dict[str, Any] = {"measure": "level", "place": f"{where}, {target}" if where else target}
    if why := why_not(group):
        return Claim("critical_batch", "", "", math.nan, None, "none", more=why, **fields)
    form = chosen(group)
    bounds = form.get("intervals") or {}
    fewest = measured("training.steps", form["parameters"]["Smin"], bounds.get("Smin"))
    fields["more"] = f", and no batch takes fewer than {fewest}"
    return Claim("critical_batch", "", "", form["parameters"]["B*"], bounds.get("B*"), "none", **fields)


def followed(group: Group) -> bool:
    """Whether the best x of enough values of the second variable lie inside the grid, and are established."""
    law = group.get("law")
    return bool(law and law["enough_points"] and law["intervals"] and not law["doubts"])


def _optima(group: Group, spec: Mapping[str, Any]) -> list[Claim]:
    """How the best x depends on the second variable; for budgets also the steps that it leaves."""
    x, second = spec["x"], noun(spec["second"])
    if "error" in group:
        return [Claim(x, second, "", math.nan, None, "none", "optimum", more=group["error"])]
    inside, law = [item for item in group["optima"] if not item["edge"]], group["law"]
    edges = [item["second"] for item in group["optima"] if item["edge"]]
    ends = f" At {_at(spec['second'], edges)} the best value lies at the edge of the grid." if edges else ""
    if law and law.get("local"):
        return [_local(law, spec, ends)]
    if not followed(group):
        few = f"{len(inside)} of {len(group['optima'])} optima lie inside the grid, too few for a power law"
        why = listed(law["doubts"]) if law and law["enough_points"] and law["doubts"] else few
        return [Claim(x, second, "", math.nan, None, "none", "optimum", more=why, notes=ends)]
    value, bounds = law["parameters"]["a"], tuple(law["intervals"]["a"])
    verdict, more = verdict_on(bounds), ""
    if spec["form"] == "isoflop":
        parts = []
        for key, name in (("a", noun(x)), ("steps", "training steps")):
            low, high = (10**bound for bound in law["intervals"][key])
            parts.append(f"{estimate(10 ** law['parameters'][key], (low, high))} times the {name}")
        lost = sorted(item["doubling"]["value"] for item in inside)
        shown = [number(100 * value, 2) for value in (lost[0], lost[-1])]
        more = f": ten times the {second} is best spent on {listed(parts)}"
        ends = (
            f" By the parabolas, half or twice the best {noun(x)} raises {noun(spec['y'])} by {shown[0]} to "
            f"{shown[1]} %.{_missed(group, spec)}{ends}"
        )
    return [Claim(x, second, "", value, bounds, verdict, "optimum", more=more, notes=ends, pairs=len(inside))]


def _local(law: Mapping[str, Any], spec: Mapping[str, Any], ends: str) -> Claim:
    """The exponent at the largest values of a best x that follows no power law, since its logarithms bend."""
    local, bounds = law["local"], tuple(law["local"]["interval"])
    bend = estimate(law["curvature"]["value"], law["curvature"]["interval"])
    low, high = local["range"]
    over = span(low, high, label(spec["second"]).unit)
    more = f"; we claim no power law: over all budgets the curve bends (curvature {bend})"
    fields: dict[str, Any] = {"more": more, "notes": ends, "pairs": law["points"]}
    second, verdict = noun(spec["second"]), verdict_on(bounds)
    return Claim(spec["x"], second, over, local["value"], bounds, verdict, "optimum", **fields)


def _at(column: str, values: Sequence[float]) -> str:
    """Values of a column with its unit: `training compute of 2 × 10¹⁰ FLOPs`."""
    unit = label(column).unit
    return f"{noun(column)} of {listed([number(value) for value in values])} {unit}".rstrip()


def _missed(group: Group, spec: Mapping[str, Any]) -> str:
    """Where the power law of the best x lies outside that of the optimum itself."""
    law = group["law"]["parameters"]
    places = [
        item["second"]
        for item in group["optima"]
        if not item["edge"] and item["x_interval"]
        and not item["x_interval"][0] <= law["A"] * item["second"] ** law["a"] <= item["x_interval"][1]
    ]  # fmt: skip
    if not places:
        return ""
    return f" The power law lies outside the interval of the best {noun(spec['x'])} at {_at(spec['second'], places)}."


def equation(group: Group, x: str, y: str = "error", width: int = 72) -> str:
    """The law with its parameters and 95 % intervals, as mathtext in lines of about `width` characters.

    The variable is divided by a round number inside the data, so that A is the metric (above the floor) there.
    """
    form = chosen(group)
    left, right = label(y).symbol, label(x).symbol
    reference = form.get("reference")
    if reference:
        right = f"({right} / {_mathtext(reference['x'])})"
    floor = "E + " if group["chosen"] == "power_law_floor" else ""
    parts = [f"${left if left != 'x' else 'y'} = {floor}A\\,{right}^{{-a}}$"]
    values, bounds = dict(form["parameters"]), dict(form.get("intervals") or {})
    if reference:
        values["A"], bounds["A"] = reference["A"], reference["interval"]
    share = label(y).percent
    for key in [key for key in ("a", "A", "E") if key in values]:
        text = (
            measured(y, values[key], bounds.get(key))
            if share and key != "a"
            else estimate(values[key], bounds.get(key))
        )
        if key == "E" and not floor_shown(group) and bounds.get(key):
            parts.append(f"E < {measured(y, bounds[key][1]) if share else estimate(bounds[key][1])}")
        else:
            parts.append(f"{key} = {text}")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1].replace("$", "").replace("\\", "")) + len(part) > width:
            lines.append(part)
        else:
            lines[-1] += ",  " + part
    return "\n".join(lines)


def _mathtext(value: float) -> str:
    """A round number (1, 2 or 5 times a power of ten) inside a formula."""
    if value < 1e4:
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    head = round(value / 10**power)
    return (f"{head}\\cdot" if head != 1 else "") + f"10^{{{power}}}"
