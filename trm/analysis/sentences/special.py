"""Sentences of the laws with two variables, of batch sizes, halting and inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trm.analysis.labels import label
from trm.analysis.words import interval, number, value_name


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
