"""Which forms do the points exclude? What a power law needs before it is called one, and what its intervals cover.

A claim and an interval carry opposite burdens of proof. "Power law" is said only if every rival is worse even after
the price of its parameters (AICc), and still is with the error on the held-out largest point added. An interval
covers every form whose misfit alone does not rule it out (likelihood ratio), so that a floor which fits as well widens
it. benchmarks/claims.py measures how often a false form passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from trm.analysis.fits.data import Data
from trm.analysis.labels import FORM_NAMES as NAMES
from trm.analysis.stats import seed_spread
from trm.analysis.words import count, listed

LAWS = ("power_law", "power_law_floor")
RIVALS = ("exponential", "sigmoid")
MARGIN = 2.0
"""AICc by which a rival must be worse (Burnham & Anderson 2002: less is substantial support for it)."""
RATIO = 3.84
"""-2 log likelihood ratio beyond which a form is ruled out: 95 % of chi-squared with one degree."""
EQUAL = 0.025
"""One-sided level of the test that the last two points differ."""


def alike(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The forms that fit alike: AICc within MARGIN of the lowest, best first."""
    known = {name: item["aicc"] for name, item in results.items() if item["aicc"] is not None}
    lowest = min(known.values(), default=0.0)
    return sorted((name for name in known if known[name] < lowest + MARGIN), key=known.__getitem__)


def possible(results: Mapping[str, Mapping[str, Any]], observations: int) -> list[str]:
    """The forms of one variable that their misfit to the observations does not rule out."""
    loss = {
        name: observations * math.log(max(item["cost"], 1e-12))
        for name, item in results.items()
        if name in LAWS + RIVALS and item["converged"]
    }
    lowest = min(loss.values(), default=0.0)
    return [name for name, value in loss.items() if value <= lowest + RATIO]


def objections(chosen: str, results: Mapping[str, Mapping[str, Any]], data: Data) -> list[str]:
    """Why the points do not single out a power law; empty: its rivals are excluded.

    Args:
        chosen: the power law of the lowest AICc, or the one that was asked for.
        results: per form `aicc` and `held_out` as in fit.json.
    """
    if chosen not in LAWS:
        return []
    found = []
    untested = [NAMES[name] for name in RIVALS if not results.get(name, {}).get("enough_points")]
    if untested:
        found.append(f"{count(data.points, 'point')} cannot exclude {' or '.join(untested)}")
    best = min(
        (results[n]["aicc"] for n in LAWS if n in results and results[n]["aicc"] is not None), default=None
    )
    near = [name for name in alike(results) if name not in LAWS and NAMES[name] not in untested]
    near += [
        name
        for name in RIVALS
        if name in results
        and name not in near
        and best is not None
        and _beaten(best, chosen, name, results, data)
    ]
    better = [name for name in near if best is not None and results[name]["aicc"] <= best - MARGIN]
    if better:
        verb = "fit" if len(better) > 1 else "fits"
        found.append(f"{listed([NAMES[name] for name in better])} {verb} better")
    elif near:
        found.append(f"{listed([NAMES[name] for name in (chosen, *near)])} fit alike")
    if ended(data):
        found.append("the last two points are equal within the noise")
    return found


def _beaten(
    best: float, chosen: str, rival: str, results: Mapping[str, Mapping[str, Any]], data: Data
) -> bool:
    """Whether AICc and the held-out point together leave the rival within MARGIN of the law."""
    law, other = results[chosen]["held_out"], results[rival]["held_out"]
    aicc, spread = results[rival]["aicc"], seed_spread(data.log_y, data.group)
    if aicc is None or not law or not other or not spread:
        return False
    last = int((data.x[0] == data.x[0].max()).sum())
    missed = (other["log_error"] ** 2 - law["log_error"] ** 2) * last / spread**2
    return bool(aicc - best + missed < MARGIN)


def ended(data: Data) -> bool:
    """Whether the last two points cannot be told apart, in the direction of the trend. Runs at both are paired."""
    _, y = data.means()
    places = np.unique(data.x[0])
    if len(places) < 3:
        return False
    last, before = (data.x[0] == place for place in (places[-1], places[-2]))
    one, two = (dict(zip(np.array(data.runs)[rows], data.log_y[rows])) for rows in (before, last))
    sign = np.sign(np.log(y[0] / y[-1])) or 1.0
    both = [sign * (one[run] - two[run]) for run in one.keys() & two.keys()]
    if len(both) > 1:
        return (
            bool(stats.ttest_1samp(both, 0, alternative="greater").pvalue > EQUAL) if np.ptp(both) else False
        )
    spread, freedom = seed_spread(data.log_y, data.group), len(data.y) - data.points
    if not spread:
        return False
    change = sign * (data.log_y[before].mean() - data.log_y[last].mean())
    error = spread * math.sqrt(1 / before.sum() + 1 / last.sum())
    return bool(stats.t.sf(change / error, freedom) > EQUAL)
