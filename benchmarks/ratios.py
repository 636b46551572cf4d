"""Ratios of benchmarks as rows of one table and one figure. More than 1: ours is better by that factor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

DATA = {
    "read": "read a CSV file",
    "augment": "write 1,000 copies a puzzle",
    "turn": "write 8 forms of a maze",
    "arc": "write copies of ARC tasks",
}
"""What the lines of the data benchmark are called in the table."""


class Ratio(NamedTuple):
    """One comparison."""

    group: str
    name: str
    ratio: float
    """Baseline's time (or rate, inverted) over ours, or what is allowed over what was taken."""
    low: float | None
    high: float | None
    """Quartiles over paired rounds, or least and most; None where there is no spread."""
    owed: float | None
    """The ratio that the project set itself."""
    against: str


SECONDS_ALLOWED = {
    # pipeline benchmark: wall seconds owed
    ("shipped study", "snakemake -n -q"): 2.0,
    ("5000 points", "parse"): 3.0,
    ("5000 points", "snakemake -n -q"): 15.0,
}


def ratios_of(name: str, written: dict[str, Any]) -> list[Ratio]:
    """The comparisons in the JSON document that benchmark `name` wrote."""
    if name == "step":
        return [
            Ratio(
                f"{found['what']}, {found['precision']}",
                f"{found['case']}, {found['batch']} rows",
                found["ratio"],
                *found["ratio_quartiles"],
                found["floor"],
                "plain eager PyTorch, same arithmetic",
            )
            for found in sorted(written["results"], key=lambda r: (r["what"] != "train", r["precision"]))
        ]
    if name == "data":
        lines = ((line, found) for line, found in written["lines"].items() if "ratio" in found)
        return [
            Ratio("data", DATA.get(line, line), found["ratio"], None, None, None, "plain loop")
            for line, found in lines
        ]
    if name == "fixed_cost":
        owed, taken = written["owed"], written["commands"]["run"]
        ratio, *spread = (owed / taken[key] for key in ("wall", "wall_most", "wall_least"))
        return [
            Ratio("seconds allowed / taken", "fixed cost of a run", ratio, *spread, 1.0, f"{owed:g} s"),
        ]
    rows = []
    for study, commands in written.items():
        for command, taken in commands.items():
            allowed = SECONDS_ALLOWED.get((study, command))
            if allowed:
                spread = allowed / taken["max"], allowed / taken["min"]
                row = f"{command}, {study}", allowed / taken["median"], *spread, 1.0, f"{allowed:g} s"
                rows.append(Ratio("seconds allowed / taken", *row))
    return rows


def table(found: list[Ratio]) -> str:
    """The comparisons as lines of text."""
    lines = [f"{'':<26}{'':<34}{'ratio':>7}  {'spread':<13}{'owed':>5}  against"]
    for r in found:
        spread = "" if r.low is None else f"{r.low:.2f}-{r.high:.2f}"
        owed = "" if r.owed is None else f"{r.owed:.1f}"
        short = " (missed)" if r.owed is not None and r.ratio < r.owed else ""
        lines.append(f"{r.group:<26}{r.name:<34}{r.ratio:>7.2f}  {spread:<13}{owed:>5}  {r.against}{short}")
    return "\n".join(lines)


def draw(found: list[Ratio], folder: Path) -> None:
    """bench.pdf and bench.png: a point for each ratio, its spread as a line, what is owed as a tick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups: dict[str, list[Ratio]] = {}
    for ratio in found:
        groups.setdefault(ratio.group, []).append(ratio)
    heights = [len(rows) + 0.9 for rows in groups.values()]
    figure, axes = plt.subplots(
        len(groups),
        1,
        figsize=(6.3, 0.24 * sum(heights) + 0.7),
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    for ax, (group, rows) in zip(axes[:, 0], groups.items()):
        for y, r in enumerate(rows):
            if r.low is not None:
                ax.plot([r.low, r.high], [y, y], color="#4477aa", linewidth=1.5, solid_capstyle="butt")
            ax.plot(r.ratio, y, "o", color="#4477aa", markersize=4.5)
            if r.owed is not None:
                ax.plot(r.owed, y, "|", color="#cc3311", markersize=9, markeredgewidth=1.6)
            ax.annotate(
                f"{r.ratio:.2f}" if r.ratio < 10 else f"{r.ratio:.0f}",
                (1.01, y),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=7,
            )
        ax.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        ax.set_yticks(range(len(rows)), [r.name for r in rows], fontsize=7)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xscale("log")
        ax.set_title(group, fontsize=8, loc="left", pad=3)
        ax.tick_params(axis="x", which="both", labelsize=7)
        ax.spines[["top", "right"]].set_visible(False)
    # one scale for ratios of a few, one for those of tens and more
    for large in (False, True):
        alike = [
            (ax, rows)
            for ax, rows in zip(axes[:, 0], groups.values())
            if large == any(r.ratio > 10 for r in rows)
        ]
        ends = [
            x for _, rows in alike for r in rows for x in (r.ratio, r.low, r.high, r.owed) if x is not None
        ]
        for ax, _ in alike:
            ax.set_xlim(0.9 * min(1, *ends), 1.1 * max(1, *ends))
            low, high = ax.get_xlim()
            steps = (1, 10, 100, 1000) if large else (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 5, 10)
            ticks = [t for t in steps if low <= t <= high]
            ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
            ax.set_xticks([], minor=True)
    axes[-1, 0].set_xlabel("ratio, more is better (red: owed)", fontsize=8)
    for suffix in ("pdf", "png"):
        figure.savefig(folder / f"bench.{suffix}", dpi=150)
    plt.close(figure)
