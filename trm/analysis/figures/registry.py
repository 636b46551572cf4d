"""From a figure's kind to the module that draws it."""

from __future__ import annotations

import importlib
from typing import Any

from trm.analysis.figures.base import Drawing
from trm.analysis.specs import Figure
from trm.analysis.tables import Table
from trm.errors import UserError


def draw(spec: Figure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Draw one figure.

    Args:
        spec: the figure.
        tables: the tables of the experiments it shows.
        fits: contents of fit.json files; those the figure asks for are found by their spec.

    Raises:
        UserError: a table, fit or column is missing; the sentence names it.
    """
    if not tables:
        raise UserError(f"figure {spec.slug} needs at least one --table")
    module = importlib.import_module(f"trm.analysis.figures.{spec.kind}")
    return module.draw(spec, tables, fits)
