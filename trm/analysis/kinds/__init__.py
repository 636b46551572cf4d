"""Kinds of figures: one module each, with its specification, drawing and words.

A module `kinds/<kind>.py` defines

- `Spec`, a subclass of `trm.analysis.specs.Figure` whose `kind` is the module's name and whose `reading` says how
  to read it, and
- `draw(spec, tables, fits)`, which returns a `Drawing`: the canvas, its caption and what it shows in words.
  Heading and footer are added to all kinds alike.

Nothing else needs to know the kind: the configuration, the commands, the rules and the report find it here. Importing a
kind imports neither numpy nor matplotlib (`trm.analysis.lazy`), so the Snakefile parses fast.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field, TypeAdapter

from trm.analysis.lazy import common
from trm.analysis.specs import Figure
from trm.errors import UserError

if TYPE_CHECKING:
    from trm.analysis.tables import Table

KINDS: dict[str, ModuleType] = {
    item.name: importlib.import_module(f"{__name__}.{item.name}")
    for item in pkgutil.iter_modules(__path__)
    if item.name != "common"
}
"""Kind -> its module."""


def adapter() -> TypeAdapter[Figure]:
    """Parses the specification of a figure of any kind in `KINDS`."""
    specs = tuple(module.Spec for module in KINDS.values())
    kinds: Any = Annotated[Union[specs], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(kinds)


FIGURE = adapter()


def fit_and_draw(spec: Figure, experiment: str, tables: list[Table]) -> common.Drawing:
    """Draw a figure of an experiment from tables alone: what it fits is fitted anew."""
    from trm.analysis.fits import fit_table
    from trm.analysis.tables import merge

    fits = [fit_table(merge(tables, fit.experiments), fit) for fit in spec.fits(experiment)]
    return draw(spec, tables, fits)


def draw(spec: Figure, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Draw one figure.

    Args:
        spec: the figure.
        tables: the tables of the experiments it shows.
        fits: contents of fit.json files; the figure finds those it needs by their spec.

    Raises:
        UserError: a table, fit or column is missing; the sentence names it.
    """
    if not tables:
        raise UserError(f"figure {spec.slug} needs at least one --table")
    from trm.analysis.drawing import finish

    return finish(KINDS[spec.kind].draw(spec, tables, fits), spec, tables)
