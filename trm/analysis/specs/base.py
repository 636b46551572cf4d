"""Strict, immutable base of every spec, and columns that are checked when the study is parsed."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trm.analysis.labels import DERIVED, METRICS, config_keys

Scalar = bool | int | float | str | None
Form = Literal["constant", "power_law", "power_law_floor"]
"""constant: e = E; power_law: e = A x^-a; power_law_floor: e = E + A x^-a."""


def _known(kind: str, names: tuple[str, ...]):
    def check(value: str) -> str:
        if value in names:
            return value
        near = difflib.get_close_matches(value, names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"unknown {kind} {value!r}{hint}")

    return AfterValidator(check)


_X = tuple(DERIVED) + config_keys() + tuple(METRICS)
_ROW = (*_X, "policy", "split", "restarts", "seed")
Column = Annotated[str, _known("column", _X)]
Metric = Annotated[str, _known("metric", tuple(METRICS))]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Where = dict[Annotated[str, _known("column", _ROW)], Scalar]


class Spec(BaseModel):
    """Immutable and strict: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
