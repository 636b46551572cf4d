"""Coverage of the fits' 95 % intervals: simulated studies with known laws.

    python benchmarks/fits.py                 # 200 simulations, a few minutes on 2 cores
    python benchmarks/fits.py --simulations 1000 --refits 1000

For every law and 3 and 5 seeds a point: the share of simulations whose interval holds each true parameter, and the true
curve at the grid points. Wanted: between 90 and 99 %. The same without the corrections of
trm/analysis/fits/bootstrap.py shows what they are worth. Writes a table to stdout and, with --out, JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from trm.analysis.fits.coverage import Truth, coverage

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
    """Print the table; exit code 1 if a share leaves 90-99 % with the corrections on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--refits", type=int, default=400)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines, outside = [], 0
    print(f"{'law':36} {'seeds':5} {'intervals':10} coverage of parameters, of the curve")
    for name, truth in CASES.items():
        for seeds in (3, 5):
            for corrected in (True, False):
                begun = time.perf_counter()
                found = coverage(
                    truth,
                    seeds,
                    args.simulations,
                    refits=args.refits,
                    scaled=corrected,
                    **({} if corrected else {"pool": 0.0}),
                )
                shares = {**found.parameters, "curve": found.curve}
                outside += corrected and any(not 0.90 <= share <= 0.99 for share in shares.values())
                shown = "  ".join(f"{key} {100 * share:.1f} %" for key, share in shares.items())
                kind = "corrected" if corrected else "plain"
                print(
                    f"{name:36} {seeds:5} {kind:10} {shown}  ({time.perf_counter() - begun:.0f} s)",
                    flush=True,
                )
                lines.append(
                    {
                        "law": name,
                        "seeds": seeds,
                        "intervals": kind,
                        "coverage": shares,
                        "failed": found.failed,
                    }
                )
    if args.out:
        args.out.write_text(json.dumps({"simulations": args.simulations, "cases": lines}, indent=1) + "\n")
    print("all between 90 and 99 %" if not outside else f"{outside} cases outside 90-99 %")
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
