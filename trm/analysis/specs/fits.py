"""What a fit is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trm.analysis.specs.base import Column, Form, Fraction, Metric, Spec, Where


class FitSpec(Spec):
    """One fit: which rows, which law, how its interval is made. Its canonical JSON is the identity of a
    fit.json."""

    experiments: tuple[str, ...] = ()
    """Experiments whose tables are read together; empty: every table given."""
    form: Form | Literal["auto", "repeated_data", "joint", "critical_batch", "optimum"] = "auto"
    """The law. auto: best of `forms` on the held-out largest point. repeated_data: Muennighoff 2023 with
    U = `x` and R = `second`; joint: E + A N^-a + B C^-b with N = `x`, C = `second`; critical_batch:
    S = Smin (1 + B*/B); optimum: the best `x` for every `second`, then a power law of it."""
    forms: tuple[Form, ...] = ("constant", "power_law", "power_law_floor")
    """Forms compared by held-out error and AICc (one-variable laws)."""
    x: Column = "data.train_puzzles"
    """The law's variable."""
    y: Metric = "error"
    """What is fitted, in log space."""
    second: Column | None = None
    """Second variable of repeated_data, joint and optimum."""
    hue: Column | None = None
    """One separate fit for each value of this column."""
    where: Where = {}
    """Only rows with these values."""
    delta: Annotated[float, Field(gt=0)] | None = None
    """Huber threshold in log units; null: 1.35 x the pooled seed spread, with half and twice as
    sensitivity."""
    bootstrap: Annotated[int, Field(ge=1)] = 1000
    """Refits of the hierarchical bootstrap."""
    level: Fraction = 0.95
    """Two-sided level of every interval."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the bootstrap."""
    target: Fraction | None = None
    """Accuracy whose cost the fit also answers (for batch laws: whose steps are counted)."""

    @model_validator(mode="after")
    def _second(self) -> FitSpec:
        if self.form in ("repeated_data", "joint", "optimum") and not self.second:
            raise ValueError(f"form={self.form} needs `second`, its second variable")
        return self
