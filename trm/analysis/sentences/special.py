"""Sentences of the laws with two variables, of batch sizes, halting and inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trm.analysis.labels import label
from trm.analysis.words import interval, number, percent, value_name


def optimum_sentence(group: Mapping[str, Any], x: str, second: str) -> str:
    """How the best x moves with the second variable."""
    thing, other = label(x).name, label(second).name
    if "optima" not in group:
        return f"The best {thing} cannot be followed over {other}: {group['error']}."
    edges = [item for item in group["optima"] if item["edge"]]
    parts = []
    law = group.get("law")
    if law:
        slope, bounds = law["parameters"]["a"], (law.get("intervals") or {}).get("a")
        shown = f"{number(slope, 2)}{interval(bounds)}"
        if bounds is not None and bounds[0] <= 0 <= bounds[1]:
            parts.append(f"The best {thing} shows no certain trend with {other} (exponent {shown}).")
        else:
            verb = "rises" if slope > 0 else "falls"
            parts.append(f"The best {thing} {verb} with the power {shown} of {other}.")
        if not law["borne"]:
            parts.append(f"({law['points']} optima do not test a power law.)")
    else:
        parts.append(
            f"No power law of the best {thing} in {other}: fewer than two optima lie inside the grid."
        )
    if edges:
        where = ", ".join(value_name(item["second"]) for item in edges)
        parts.append(f"At {other} {where} the best {thing} lies at the edge of the grid.")
    return " ".join(parts)


def inference_sentence(gains: Mapping[str, Any]) -> str:
    """What each way of spending test-time compute adds to the reference evaluation."""
    reference = gains["reference"]
    if reference["flops"] is None:
        return "The reference evaluation (as many steps as in training) was not measured."
    price = number(reference["flops"])
    text = f"The reference evaluation solves {percent(reference['value'])} at {price} FLOPs a puzzle."
    names = {
        "fixed": "Another number of supervision steps",
        "confident": "Stopping on the halt logit",
        "restarts": "Picking among restarts by the halt logit",
        "majority": "Majority vote over restarts",
        "oracle": "The oracle over restarts",
    }
    for policy, name in names.items():
        item = gains.get(policy)
        if not item or (item["flops"] == reference["flops"] and policy == "fixed"):
            continue
        ratio = item["flops"] / reference["flops"]
        shown = f"{100 * item['change']:+.1f}".replace("-", "−") + interval(
            (item["low"], item["high"]), 2, 100
        )
        sure = item["low"] is not None and (item["low"] > 0 or item["high"] < 0)
        verb = (
            ("adds" if item["change"] > 0 else "loses") if sure else "changes accuracy by no certain amount:"
        )
        text += f" {name} {verb} {shown} percentage points at {number(ratio, 2)} times the compute"
        text += (
            f" ({item['restarts']} restarts)."
            if item["restarts"] > 1
            else f" (at most {item['steps']} steps)."
        )
    return text


def halting_sentence(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """Mean steps at which puzzles halt, smallest and largest."""
    ranked = sorted(numbers, key=lambda name: numbers[name]["mean_steps"])

    def shown(name: str) -> str:
        item = numbers[name]
        bounds = interval((item["low"], item["high"]), 3)
        return f"{number(item['mean_steps'], 3)}{bounds} of {int(item['most'])} steps"

    if len(ranked) == 1:
        item = numbers[ranked[0]]
        return (
            f"Puzzles halt after {shown(ranked[0])} on average; {percent(item['halted'])} halt by themselves."
        )
    low, high = ranked[0], ranked[-1]
    return f"Puzzles halt after {shown(low)} on average with {low}, and after {shown(high)} with {high}."
