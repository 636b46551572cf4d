"""Do the 95 % intervals hold? Simulated studies with a known law, fitted as real ones are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trm.analysis.fits.bootstrap import POOL, resample, seed_spread
from trm.analysis.fits.compare import delta_for
from trm.analysis.fits.forms import FORMS, Array, normalise
from trm.analysis.fits.run import percentiles
from trm.analysis.fits.solve import solve


@dataclass(frozen=True)
class Truth:
    """A law and the study that samples it."""

    form: str
    parameters: tuple[float, ...]
    """In the form's public units and order."""
    x: Array
    """Grid points [v, P]."""
    spread: float | tuple[float, ...] = 0.12
    """Standard deviation of log y between seeds: of all points, or of each [P]."""

    def value(self, x: Array) -> Array:
        """The true law at x [v, Q] -> [Q]."""
        values = dict(zip(FORMS[self.form].parameters, self.parameters))
        if self.form == "constant":
            return np.full(x.shape[1], values["E"])
        if self.form == "critical_batch":
            return values["Smin"] * (1 + values["B*"] / x[0])
        data = x[0]
        if self.form == "repeated_data":
            data = x[0] * (1 + values["R*"] * (1 - np.exp(-x[1] / values["R*"])))
        result = values.get("E", 0.0) + values["A"] * data ** -values["a"]
        if self.form == "joint":
            result = result + values["B"] * x[1] ** -values["b"]
        return result


@dataclass(frozen=True)
class Coverage:
    """Share of simulations whose interval holds the truth."""

    parameters: dict[str, float]
    curve: float
    """Mean over the grid points of the share that holds the true value there."""
    failed: float
    """Mean share of failed refits."""
    simulations: int


def coverage(
    truth: Truth,
    seeds: int,
    simulations: int,
    *,
    refits: int = 400,
    seed: int = 0,
    scaled: bool = True,
    pool: float = POOL,
) -> Coverage:
    """Simulate studies with `seeds` seeds a point and count how often the percentile intervals hold the truth."""
    form = FORMS[truth.form]
    x = np.repeat(truth.x, seeds, axis=1)
    group = np.repeat(np.arange(truth.x.shape[1]), seeds)
    exact = np.log(truth.value(x))
    spread = np.repeat(np.broadcast_to(truth.spread, truth.x.shape[1]), seeds)
    rng = np.random.default_rng(seed)
    u, scale = normalise(form, x)
    hits = np.zeros(len(form.parameters))
    inside, failed = 0.0, 0.0
    for index in range(simulations):
        log_y = exact + spread * rng.standard_normal(exact.shape)
        delta = delta_for(seed_spread(log_y, group))
        starts = form.starts(u, np.exp(log_y))
        full = solve(form, u, log_y[None], delta, starts, refine=12)
        samples = resample(log_y, group, refits, index, scaled=scaled, pool=pool)
        found = solve(form, u, samples, delta, np.concatenate([full.phi, starts]), refine=3)
        good = found.phi[found.converged]
        low, high = percentiles(form.public(good, scale), 0.95)
        hits += (low <= truth.parameters) & (np.array(truth.parameters) <= high)
        bottom, top = percentiles(form.log_value(good, u), 0.95)
        inside += float(((bottom <= exact) & (exact <= top)).mean())
        failed += 1 - found.converged.mean()
    shares = hits / simulations
    return Coverage(
        dict(zip(form.parameters, shares.tolist())), inside / simulations, failed / simulations, simulations
    )
