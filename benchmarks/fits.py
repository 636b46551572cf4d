"""Coverage of the fits' 95 % intervals: simulated studies with known laws.

    python -m benchmarks.fits                 # 200 simulations, a few minutes on 2 cores
    python -m benchmarks.fits --simulations 1000 --refits 1000

For every law, with 3 and 5 seeds a point: the share of simulations whose interval contains each true parameter, and
the true curve at the grid points. Both should be between 90 and 99 %. Exit code 1 if a share is outside that range.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.frame import finish, parser
from trm.analysis.fits.bootstrap import resample
from trm.analysis.fits.compare import delta_for
from trm.analysis.fits.forms import FORMS, Array, normalise
from trm.analysis.fits.solve import solve
from trm.analysis.stats import percentiles, seed_spread


@dataclass(frozen=True)
class Truth:
    """A law, and the study that samples it."""

    form: str
    parameters: tuple[float, ...]
    """In the form's units and order."""
    x: Array
    """Grid points [v, P]."""
    spread: float | tuple[float, ...] = 0.12
    """Standard deviation of log y between seeds, for all points or for each [P]."""

    def value(self, x: Array) -> Array:
        """The law at x [v, Q] -> [Q]."""
        values = dict(zip(FORMS[self.form].parameters, self.parameters))
        if self.form == "constant":
            return np.full(x.shape[1], values["E"])
        if self.form == "exponential":
            return values["E"] + values["A"] * np.exp(-x[0] / values["s"])
        if self.form == "sigmoid":
            return values["E"] + values["A"] / (1 + (x[0] / values["m"]) ** values["k"])
        if self.form == "critical_batch":
            return values["Smin"] * (1 + values["B*"] / x[0])
        data = x[0]
        if self.form == "repeated_data":
            data = x[0] * (1 + values["R*"] * (1 - np.exp(-x[1] / values["R*"])))
        result = values.get("E", 0.0) + values["A"] * data ** -values["a"]
        if self.form == "joint":
            result = result + values["B"] * x[1] ** -values["b"]
        return result


def coverage(truth: Truth, seeds: int, simulations: int, refits: int) -> dict[str, float]:
    """The share of simulated studies whose percentile interval contains each parameter.

    `curve` is the mean over the grid points of the share whose interval contains the true value.
    """
    form = FORMS[truth.form]
    x = np.repeat(truth.x, seeds, axis=1)
    group = np.repeat(np.arange(truth.x.shape[1]), seeds)
    exact = np.log(truth.value(x))
    spread = np.repeat(np.broadcast_to(truth.spread, truth.x.shape[1]), seeds)
    rng = np.random.default_rng(0)
    u, scale = normalise(form, x)
    hits, inside = np.zeros(len(form.parameters)), 0.0
    for index in range(simulations):
        log_y = exact + spread * rng.standard_normal(exact.shape)
        delta = delta_for(seed_spread(log_y, group))
        starts = form.starts(u, np.exp(log_y))
        full = solve(form, u, log_y[None], delta, starts, refine=12)
        samples = resample(log_y, group, refits, index)
        found = solve(form, u, samples, delta, np.concatenate([full.phi, starts]), refine=3)
        good = found.phi[found.converged]
        low, high = percentiles(form.public(good, scale))
        hits += (low <= truth.parameters) & (np.array(truth.parameters) <= high)
        bottom, top = percentiles(form.log_value(good, u))
        inside += float(((bottom <= exact) & (exact <= top)).mean())
    parameters = dict(zip(form.parameters, (hits / simulations).tolist()))
    return parameters | {"curve": inside / simulations}


PUZZLES = np.array([[100.0, 250, 500, 1000, 2000, 5000, 10000]])
BATCHES = np.array([[64.0, 128, 256, 512, 1024, 2048, 4096]])
REPEATS = np.array(
    [
        [100.0, 250, 500, 1000, 2000, 5000, 1000, 1000, 1000, 1000, 1000],
        [0.0, 0, 0, 0, 0, 0, 3, 10, 30, 100, 300],
    ]
)
GRID = np.array([[n, c] for n in (1.25e6, 5e6, 2e7) for c in (1e17, 4e17, 1.6e18, 6.4e18, 2.56e19)]).T

CASES = {
    "constant": Truth("constant", (0.2,), PUZZLES),
    "power law": Truth("power_law", (20.0, 0.6), PUZZLES),
    "power law with floor": Truth("power_law_floor", (0.05, 20.0, 0.7), PUZZLES),
    "power law with floor, uneven spread": Truth(
        "power_law_floor", (0.05, 20.0, 0.7), PUZZLES, spread=(0.05, 0.05, 0.08, 0.1, 0.15, 0.2, 0.2)
    ),
    "repeated data": Truth("repeated_data", (0.03, 20.0, 0.6, 15.0), REPEATS, spread=0.08),
    "joint": Truth("joint", (0.03, 3e3, 0.7, 3e9, 0.58), GRID, spread=0.08),
    "critical batch": Truth("critical_batch", (500.0, 1000.0), BATCHES),
}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--simulations", type=int, default=200)
    options.add_argument("--refits", type=int, default=400)
    args = options.parse_args()
    rows, outside = [], 0
    for name, truth in CASES.items():
        for seeds in (3, 5):
            shares = coverage(truth, seeds, args.simulations, args.refits)
            outside += any(not 0.90 <= share <= 0.99 for share in shares.values())
            rows.append({"law": name, "seeds": seeds, "coverage": shares})
            print(f"{name}, {seeds} seeds", file=sys.stderr, flush=True)
    finish(rows, args.json, simulations=args.simulations)
    print(f"{outside} cases outside 90 to 99 %")
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
