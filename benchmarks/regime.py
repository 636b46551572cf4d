"""How good are predictions of held-out runs? Simulated studies on the grid of `paper_regime`, with its noise.

    python -m benchmarks.regime                  # 40 studies of every truth, some minutes on one core

Each study predicts two runs of twice the compute and twice the parameters. Truths are the nine forms and two curves
that none of them has: sums of power laws. `covers`: share of studies whose 90 % interval holds the measured mean. The
misses are medians of |predicted - measured error| for all forms averaged, the form of the lowest AICc alone, and the
rivals: a power law of compute through the runs of the same puzzles, and the last measured value. Exit code 1 if an
interval covers less than 75 % in the mean over truths, or averaging misses by more than one of the two rivals.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from benchmarks.frame import finish, parser
from trm.analysis.fits.forms import Array
from trm.analysis.fits.recurring import COLUMNS, RECURRING, recurring
from trm.analysis.specs import FitSpec
from trm.analysis.tables import Table

SIZES = {48: 19_000, 64: 33_000, 96: 72_000, 128: 128_000}
GRID = [
    *((c, 64, u, 0) for c in (6e13, 1.2e14, 2e14) for u in (30, 100, 1000, 40_000)),
    *((1.2e14, 64, u, 1) for u in (1000, 40_000)),
    *((c, d, 1000, 0) for c in (1.2e14, 2e14) for d in (48, 96)),
    *((4e14, 128, 1000, seed) for seed in (0, 1)),
]
"""FLOPs, width, puzzles, seed of every run; the last two are held out."""
TESTED = 1000
Truth = Callable[[Array, np.random.Generator], Array]
"""Variables [3, N] -> logit of the error [N]."""


def of_form(name: str) -> Truth:
    """A form with random parameters: half-way between 8e13 and 4e14 FLOPs, steeper or flatter."""

    def value(x: Array, rng: np.random.Generator) -> Array:
        b, a = rng.uniform(0.7, 3.5), rng.uniform(-0.6, 0.6)
        k = -b * np.log(rng.uniform(8e13, 4e14)) - a * np.log(SIZES[64])
        more: list[float] = []
        if name.endswith("floor"):
            g = rng.uniform(0.5, 1.5)
            more = [g * np.log(rng.uniform(20, 120)), g]
        if name.endswith("data"):
            d = rng.uniform(0.05, 0.3)
            k, more = k - d * np.log(1000), [d]
        return np.asarray(RECURRING[name].log_value(np.array([[k, b, a, *more]]), x)[0])

    return value


def sums(cut: float) -> Truth:
    """E + B C^-b + A N^-a + D U^-d, cut off smoothly at `cut`."""

    def value(x: Array, rng: np.random.Generator) -> Array:
        a, b, d = rng.uniform(0.1, 0.6, 3)
        error = 0.02 + 0.5 * (x[0] / 6e13) ** -b + 0.1 * (x[1] / 3e4) ** -a + 0.1 * (x[2] / 100) ** -d
        return np.asarray(logit(cut * error / (cut + error)))

    return value


TRUTHS = {name: of_form(name) for name in RECURRING} | {
    "sum, cut at 1": sums(1.0),
    "sum, cut at 3": sums(3.0),
}


@dataclass(frozen=True)
class Result:
    covered: bool
    width: float
    misses: tuple[float, float, float, float]
    """Of all forms, of the best form, of a power law of compute, of the last value."""


def study(truth: Truth, seed: int, noise: float) -> Result:
    """One simulated study."""
    rng = np.random.default_rng(seed)
    cost, width, puzzles, _ = (np.array(column, float) for column in zip(*GRID))
    x = np.stack([cost, [SIZES[int(d)] for d in width], puzzles])
    drawn = truth(x, rng) + rng.normal(0, noise, len(GRID))
    error = rng.binomial(TESTED, np.clip(expit(drawn), 0, 1)) / TESTED
    rows = pd.DataFrame(dict(zip(COLUMNS, x)) | {"error": error, "puzzles": TESTED, "finished": True})
    rows = rows.assign(
        label="held out", run=[str(number) for number in range(len(GRID))], split="test", primary=True
    )
    rows = rows.assign(series="", policy="fixed", main=True)
    table = Table(rows, pd.DataFrame(), {"experiment": "simulated"})
    spec = FitSpec(form="recurring_data", x=COLUMNS[0], second=COLUMNS[1], until=3e14, bootstrap=200)
    group = recurring(table, spec)
    place = group["places"][0]
    best = min(group["forms"], key=lambda name: group["forms"][name]["aicc"])
    near = (width == 64) & (puzzles == 1000)
    slope = np.polyfit(np.log(cost[near]), np.log(np.maximum(error[near], 0.5 / TESTED)), 1)
    line = min(float(np.exp(np.polyval(slope, np.log(place["flops"])))), 1.0)
    last = float(error[(width == 96) & (cost == 2e14)][0])
    said = (place["predicted"], place["forms"][best], line, last)
    misses = tuple(abs(value - place["error"]) for value in said)
    low, high = place["interval"]
    return Result(low <= place["error"] <= high, high - low, misses)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--studies", type=int, default=40)
    options.add_argument("--noise", type=float, default=0.45, help="of log odds between seeds")
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name, truth in TRUTHS.items():
        results = [study(truth, seed, args.noise) for seed in range(args.studies)]
        misses = np.median([result.misses for result in results], axis=0).tolist()
        row = {
            "truth": name,
            "covers": float(np.mean([result.covered for result in results])),
            "width": float(np.median([result.width for result in results])),
            **dict(zip(("all forms", "best form", "power law of compute", "last value"), misses)),
        }
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    finish(rows, args.json, studies=args.studies)
    mean = np.mean([list(row.values())[3:] for row in rows], axis=0)
    return int(np.mean([row["covers"] for row in rows]) < 0.75 or mean[0] > mean[2:].min())


if __name__ == "__main__":
    sys.exit(main())
