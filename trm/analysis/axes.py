"""Which values a `where` takes and what a law must keep apart, of a table's rows as of a plan's points. Imports no
numpy."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trm.analysis.words import several_axes
from trm.errors import UserError

SHOWN = {"split": "test", "policy": "fixed"}
"""Of an evaluation's results those that figures show, unless they ask for others."""
Points = Sequence[Mapping[str, Any]]
"""Columns by name; `point` numbers the grid points."""


def text_of(value: Any) -> Any:
    """A table's cell: lists and objects as compact JSON text."""
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""
    return value


def is_value(cell: Any, wanted: Any) -> bool:
    """Whether a cell holds a value of the configuration or of a spec; an empty one holds null and empty lists."""
    wanted = text_of(wanted)
    if wanted in (None, ""):
        return cell is None or cell == "" or cell != cell
    if isinstance(wanted, (bool, str)):
        return str(cell) == str(wanted)
    try:
        return math.isclose(float(cell), wanted, rel_tol=1e-9, abs_tol=1e-12)
    except (TypeError, ValueError):
        return False


def series_of(label: str) -> str:
    """What the point's block of the grid sets: the brackets at the end of its label; empty: the recipe."""
    found = re.search(r"\(([^()]*)\)$", label)
    return found[1] if found else ""


def varying(points: Points, names: Sequence[str], *taken: str) -> list[str]:
    """The columns of which points with equal `taken` have several values."""

    def distinct(*columns: str) -> int:
        return len({str([point.get(name) for name in columns]) for point in points})

    return [name for name in names if name not in taken and distinct(*taken, name) > distinct(*taken)]


def implied_hue(points: Points, axes: Sequence[str], *taken: str) -> str | None:
    """The column that must separate points beside the variables `taken`, or unlike ones would be averaged.

    Blocks of a grid that set something throughout ("also at batch 4096") differ in `series`; points that differ in how
    a run is evaluated, in an `evaluation.*` axis.
    """
    if "label" in taken:
        return None
    if "series" not in taken and varying(points, ["series"]):
        return "series"
    return next((name for name in varying(points, axes, *taken) if name.startswith("evaluation.")), None)


def hue_of_law(points: Points, axes: Sequence[str], x: str, hue: str | None = None) -> str | None:
    """The column that separates laws of `x`: `hue`, else the implied one, else the other axis of a grid over `x`.

    UserError: points of equal `x` and hue differ in further columns.
    """
    hue = hue or implied_hue(points, axes, x)
    if x not in axes:  # parameters and FLOPs sum up what differs
        return hue
    if not hue:
        beside = varying(points, axes, x)
        hue = next((name for name in beside if not varying(points, ["point"], x, name)), None)
    taken = [x, hue] if hue else [x]
    if "label" not in taken and (rest := varying(points, axes, *taken)):
        raise UserError(several_axes(taken, rest))
    return hue
