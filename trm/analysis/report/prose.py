"""Words of the report that no figure says: the size of the study; references."""

from collections.abc import Mapping, Sequence
from typing import Any

from trm.analysis.report.contents import Section
from trm.analysis.words import count, duration

REFERENCES = (
    ("Jolicoeur-Martineau 2025, Less is More: Recursive Reasoning with Tiny Networks", "2510.04871"),
    ("Wang et al. 2025, Hierarchical Reasoning Model", "2506.21734"),
    ("Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (isoFLOP curves)", "2203.15556"),
    (
        "Hestness et al. 2017, Deep Learning Scaling is Predictable, Empirically (laws with a floor)",
        "1712.00409",
    ),
    ("Muennighoff et al. 2023, Scaling Data-Constrained Language Models", "2305.16264"),
    ("McCandlish et al. 2018, An Empirical Model of Large-Batch Training", "1812.06162"),
    ("Hesterberg 2015, What Teachers Should Know about the Bootstrap", "1411.5279"),
)


def size(sections: Sequence[Section], runs: Mapping[str, Any]) -> str:
    """What the study consists of: `61 runs, 3 seeds each, 12 min of device time`."""
    seeds = sorted({section.seeds for section in sections if section.seeds}) or [0]
    many = f"{seeds[0]} to {seeds[-1]} seeds" if seeds[1:] else count(seeds[0], "seed")
    hours = sum(run["device_seconds"] for run in runs.values()) / 3600
    return f"{count(len(runs), 'run')}, {many} each, {duration(hours)} of device time"
