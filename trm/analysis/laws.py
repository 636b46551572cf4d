"""What a fit finds: laws of one and of two variables, critical batches, best values and their laws."""

import math
from collections.abc import Mapping
from typing import Any

from trm.analysis.findings import Bounds, Finding, Verdict, prediction, side
from trm.analysis.labels import label
from trm.analysis.specs import VARIABLES
from trm.analysis.words import estimate, goal, measured, noun, number, percent, setting_in_words

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
    _, bounds = parameter(group, "E")
    return bounds is not None and bool(bounds[0] > 0.01 * min(group["means"]["y"]))


def parameter(group: Group, key: str) -> tuple[float, Bounds]:
    """A parameter of the form shown, and its interval."""
    form = chosen(group)
    bounds = (form.get("intervals") or {}).get(key)
    return form["parameters"][key], bounds and (bounds[0], bounds[1])


def slope(group: Group, key: str = "a") -> tuple[float, Bounds]:
    """An exponent with the sign of the slope, and its interval."""
    value, bounds = parameter(group, key)
    return -value, None if bounds is None or None in bounds else (-bounds[1], -bounds[0])


def findings_of_fit(fit: Fit) -> list[Finding]:
    """All findings of a fit, for every colour."""
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
            found += law_findings(group, spec["x"], spec["y"], where)
    return found


def law_findings(group: Group, x: str, y: str = "error", where: str = "") -> list[Finding]:
    """A law of one variable, its floor, prediction and price; or how far the metric changes and why that is no law."""
    over = noun(x)
    if "error" in group:
        return [Finding("change", y, over, why=group["error"], place=where)]
    form, values = chosen(group), group["means"]["y"]
    unit = label(x).unit.split(" per ")[0]
    low, high = group["range"][0]
    across = f"between {number(low)} and {number(high)} {unit if unit and unit not in over else over}"
    ends = (values[0], values[-1])
    if group["chosen"] == "constant":
        return [Finding("change", y, over, across, *parameter(group, "E"), ends=ends, place=where)]
    if group["doubts"]:
        value, bounds, verdict = _fall(group)
        why = "; ".join(group["doubts"])
        return [Finding("change", y, over, across, value, bounds, verdict, where, why, ends=ends)]
    found = [Finding("power", y, over, "", *slope(group), "supported", where, ends=ends)]
    if group["chosen"] == "power_law_floor" and floor_shown(group):
        floor = parameter(group, "E")
        found.append(Finding("level", y, "unlimited " + over, "", *floor, "measured", where))
    if out := form.get("held_out"):
        found.append(predicted(y, out, where))
    if target := form.get("target"):
        found.append(_price(x, target, where))
    return found


def _price(x: str, target: Mapping[str, Any], where: str) -> Finding:
    """What a target accuracy costs. A bound that is None is infinite: that share of the refits never reaches it."""
    cost = math.nan if target["x"] is None else target["x"]
    low, high = (math.inf if end is None else end for end in target.get("interval") or (None, None))
    bounds = (low, high) if math.isfinite(low) else None
    open_end = bounds is not None and math.isinf(high)
    why = f"{percent(target['never_share'])} of the refits never reach it" if open_end else ""
    return Finding(
        "price", x, f"{goal(target['accuracy'])} accuracy", "", cost, bounds, "measured", where, why
    )


def predicted(y: str, out: Mapping[str, Any], where: str = "") -> Finding:
    """The largest point held against what a fit of the others predicts for it."""
    bounds = out["interval"] and (out["interval"][0], out["interval"][1])
    return prediction(y, "all points but the largest", out["observed"], out["predicted"], bounds, where)


def _fall(group: Group) -> tuple[float, Bounds, Verdict]:
    """Logarithm of the ratio of the ends, with the pooled seed spread as its noise."""
    from trm.analysis.stats import student

    means, spread = group["means"], group.get("seed_spread")
    value = math.log(means["y"][-1] / means["y"][0])
    if not spread or len(means["x"]) > 1:
        return value, None, "undecided"
    seeds = means["seeds"]
    half = student(sum(seeds) - len(seeds)) * spread * (1 / seeds[0] + 1 / seeds[-1]) ** 0.5
    bounds = (value - half, value + half)
    return value, bounds, side(bounds)


def why_not(group: Group) -> str:
    """Why no law is claimed; empty: one is."""
    if supported(group):
        return ""
    return str(group.get("error") or "; ".join(group["doubts"]) or "no trend")


def _two(group: Group, spec: Mapping[str, Any]) -> list[Finding]:
    """E + A N^-a + B C^-b, or E + A D'^-a: an exponent for each variable, and what copies are worth."""
    joint = spec["form"] == "joint"
    names = [noun(spec["x"]), noun(spec["second"])] if joint else ["the effective number of puzzles"]
    if not supported(group):
        return [Finding("change", spec["y"], " and ".join(names), why=why_not(group))]
    found = [
        Finding("power", spec["y"], name, "", *slope(group, key), "supported")
        for name, key in zip(names, ("a", "b"))
    ]
    if not joint:
        found.append(Finding("level", "copies_worth", "", "", *parameter(group, "R*"), "measured"))
    return found


def _critical(group: Group, spec: Mapping[str, Any], where: str) -> Finding:
    """The batch beyond which more puzzles a step save few steps."""
    target = f"the target of {spec['y'].removeprefix('steps_to_')} %"
    place = f"{where}, {target}" if where else target
    if why := why_not(group):
        return Finding("level", "critical_batch", "", why=why, place=place)
    return Finding("level", "critical_batch", "", "", *parameter(group, "B*"), "measured", place)


def followed(group: Group, key: str = "x") -> bool:
    """Whether the best x (or the value there: `best`) of enough values of the second variable lie inside the grid and
    follow a power law."""
    law = group.get("laws", {}).get(key)
    return bool(law and law["interval"] and not law["doubts"])


def _optima(group: Group, spec: Mapping[str, Any]) -> list[Finding]:
    """How the best x, and the value there, depend on the second variable."""
    x, second = spec["x"], noun(spec["second"])
    if "laws" not in group:
        why = str(group.get("error") or "; ".join(group["notes"]) or "too few optima lie inside the grid")
        return [Finding("optimum", x, second, why=why)]
    ruler, turned = _ruler(group)
    found = [_growth(group["laws"]["x"], "optimum", x, spec, ruler=ruler, why=turned)]
    if law := group["laws"].get("best"):
        found.append(
            _growth(law, "power", spec["y"], spec, place=f"the best {noun(x)}", ruler=ruler.split(";")[0])
        )
        if law.get("held_out"):
            found.append(predicted(spec["y"], law["held_out"], f"the best {noun(x)}"))
    if group["laws"]["x"].get("held_out"):
        found.append(predicted(x, group["laws"]["x"]["held_out"]))
    return found


def _growth(
    law: Mapping[str, Any], kind: Any, metric: str, spec: Mapping[str, Any], **fields: Any
) -> Finding:
    """The power law of a quantity at the optima, or its exponent at the largest ones if its logarithms bend."""
    second, why = noun(spec["second"]), str(fields.pop("why", ""))
    local, across = law["local"], ""
    part = local or law
    if local:
        unit = label(spec["second"]).unit
        across = f"between {number(local['range'][0], 2)} and {number(local['range'][1], 2)} {unit}".rstrip()
    bounds = part["interval"] and (part["interval"][0], part["interval"][1])
    doubts = [doubt for doubt in law["doubts"] if not doubt.endswith("bend")] + [why] * bool(why)
    verdict: Verdict = "undecided" if doubts else side(bounds)
    return Finding(
        kind, metric, second, across, part["value"], bounds, verdict, why="; ".join(doubts), **fields
    )


def _ruler(group: Group) -> tuple[str, str]:
    """The number of test steps that an exponent is read at with the exponents at the others, and why it is undecided:
    its side changes with them."""
    rulers = group.get("rulers") or []
    if not rulers or not group.get("ruler"):
        return "", ""
    own = group["laws"]["x"]["interval"]
    text = f"{group['ruler']} test steps"
    others = [item for item in rulers if item["steps"] != group["ruler"]]

    def named(item: Mapping[str, Any]) -> str:
        return f"{item['steps']} steps" if item["steps"] else "each run's best"

    if others:
        shown = (
            f"{number(item['value'], 2) if item['value'] is not None else 'none'} at {named(item)}"
            for item in others
        )
        text += f"; {', '.join(shown)}"
    turned = [named(item) for item in others if side(own) != side(item["interval"])]
    return text, f"its side changes at {turned[0]}" if turned and side(own) == "supported" else ""


LINE = 72
"""Characters of a line below a title."""


def equation(group: Group, x: str, y: str) -> str:
    """The law with its parameters and 95 % intervals, as mathtext in lines of about `LINE` characters.

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
        if len(lines[-1].replace("$", "").replace("\\", "")) + len(part) > LINE:
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
