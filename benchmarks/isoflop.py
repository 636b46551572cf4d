"""How often is a power law of the best width claimed, and do its intervals hold? Simulated isoFLOP studies.

    python -m benchmarks.isoflop                  # 100 studies of every truth, twelve seconds on one core
    python -m benchmarks.isoflop --studies 400

The grid is that of an earlier laptop study: six budgets over two decades, four widths each, which grow with the
budget, three seeds; the noise in log cross entropy is the one measured there. `curvature`: of log cross entropy in
log width, at every budget, or `measured`, from 0.4 to 2.4. `shared`: the part of the noise's variance that a seed
brings to all its points (as measured 0.2 in the mean and 0.86 at one budget). `law`: the share of studies whose
interval excludes 0; `covers`: the share of intervals that hold the true exponent. At most 10 % may find a law where
there is none, and at least 90 % must find those of the measured curvatures (50 % where nothing is shared); exit code
1 otherwise.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.frame import finish, parser
from trm.analysis.fits.optimum import best_of
from trm.analysis.laws import followed
from trm.analysis.specs import FitSpec

GRID = {
    2e10: (8, 12, 16, 24), 5e10: (8, 12, 16, 24), 1.26e11: (12, 16, 24, 48), 3.2e11: (16, 24, 48, 64),
    8e11: (24, 48, 64, 96), 2e12: (48, 72, 96, 128),
}  # fmt: skip
NOISE = {2e10: 0.17, 5e10: 0.24, 1.26e11: 0.1, 3.2e11: 0.12, 8e11: 0.09, 2e12: 0.13}
MEASURED = {2e10: 0.1, 5e10: 0.75, 1.26e11: 0.37, 3.2e11: 0.59, 8e11: 0.65, 2e12: 2.4}
TRUTHS: list[tuple[str, dict[float, float], float, float]] = [
    ("measured", MEASURED, 0.5, 41),
    ("measured", MEASURED, 0.35, 41),
    ("0.4", dict.fromkeys(GRID, 0.4), 0.5, 41),
    ("0.4", dict.fromkeys(GRID, 0.4), 0.0, 30),
    ("0.2", dict.fromkeys(GRID, 0.2), 0.0, 35),
    ("0.4, best below the grid", dict.fromkeys(GRID, 0.4), 0.0, 4),
    ("none", dict.fromkeys(GRID, 0.0), 0.0, 41),
]
"""Name, curvature by budget, true exponent, best width at 3.2e11 FLOPs."""


def studied(
    bends: dict[float, float], exponent: float, width: float, index: int, shared: float = 0.0
) -> dict[str, Any]:
    """The fit of one simulated study, as fit.json has it."""
    rng, rows = np.random.default_rng(index), []
    common = rng.standard_normal(3)
    for budget, widths in GRID.items():
        best = np.log(width) + exponent * np.log(budget / 3.2e11)
        for d in widths:
            level = -1.5 - 0.6 * np.log(budget / 3.2e11) + bends[budget] * (np.log(d) - best) ** 2
            for seed in range(3):
                noise = (1 - shared) ** 0.5 * rng.standard_normal() + shared**0.5 * common[seed]
                y = np.exp(level + NOISE[budget] * noise)
                rows.append((f"{budget}-{d}", d, budget, budget / d**1.7, y, f"{budget}-{d}-{seed}", seed))
    columns = ["point", "model.d_model", "train_flops", "training.steps", "cross_entropy", "run", "seed"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["finished"], frame["experiment"] = True, "isoflop"
    spec = FitSpec(
        form="isoflop", x="model.d_model", second="train_flops", y="cross_entropy", bootstrap=300, seed=index
    )
    return best_of(frame, spec)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--studies", type=int, default=100)
    args = options.parse_args()
    rows, bad = [], 0
    for (name, bends, exponent, width), shared in product(TRUTHS, (0.0, 0.7)):
        fits = [studied(bends, exponent, width, index, shared) for index in range(args.studies)]
        bounds = [fit["law"]["intervals"]["a"] for fit in fits if followed(fit)]
        law = sum(low > 0 or high < 0 for low, high in bounds) / args.studies
        held = [low <= exponent <= high for low, high in bounds]
        rows.append(
            {
                "curvature": name,
                "shared": shared,
                "exponent": exponent,
                "interval": len(bounds) / args.studies,
                "law": law,
                "covers": float(np.mean(held)) if held else None,
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
        bad += law > 0.1 if not exponent else law < (0.9 if shared else 0.5) and name == "measured"
    finish(rows, args.json, studies=args.studies)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
