"""Statistics that figures, fits and the report share."""

from trm.analysis.stats.batch import Cost, by_number, costs, logged_noise_scale, noise_scale
from trm.analysis.stats.intervals import (
    Mean,
    detectable,
    holm,
    interaction,
    mean,
    paired,
    pooled_log_intervals,
    pooled_spread,
    wilson,
)
from trm.analysis.stats.pareto import frontier
from trm.analysis.stats.targets import first_reach

__all__ = [
    "Cost",
    "Mean",
    "by_number",
    "costs",
    "detectable",
    "first_reach",
    "frontier",
    "holm",
    "interaction",
    "logged_noise_scale",
    "mean",
    "noise_scale",
    "paired",
    "pooled_log_intervals",
    "pooled_spread",
    "wilson",
]
