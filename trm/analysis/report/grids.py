"""The tables of a report: results and costs by grid point, plan against actual."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from trm.analysis.kinds.restarts import CHOOSERS
from trm.analysis.labels import TARGETS
from trm.analysis.report.contents import Grid, Section
from trm.analysis.stats import share
from trm.analysis.tables import Table
from trm.analysis.words import count, duration, measured, number, percent, point_name, points


def _points(table: Table) -> pd.DataFrame:
    rows = table.select()
    return rows[rows["experiment"] == table.experiment] if "+" not in table.experiment else rows


def _mean(column: pd.Series) -> float | None:
    values = pd.to_numeric(column, errors="coerce").dropna()
    return float(values.mean()) if len(values) else None


def results_grid(table: Table) -> Grid:
    """A row for each grid point: means with 95 % intervals over seeds and test puzzles; of attempts what they solve."""
    if "solved_counts" in table.rows:
        return attempts_grid(table)
    columns = ["grid point", "seeds", "exact accuracy", "every seed (%)", "cell accuracy"]
    columns += ["cross entropy (nats per cell)", "train − test"]
    lines = []
    for _, part in _points(table).groupby("point", sort=True):
        exact = share(part["exact_accuracy"], float(part["puzzles"].iloc[0]))
        gap = _mean(part["train_test_gap"])
        lines.append(
            [
                point_name(part["label"].iloc[0]),
                str(part["seed"].nunique()),
                percent(exact.value, exact.bounds),
                " ".join(f"{100 * value:.1f}" for value in part.sort_values("seed")["exact_accuracy"]),
                percent(_mean(part["accuracy"])),
                number(_mean(part["cross_entropy"]), 2),
                points(None if gap is None else gap / 100),
            ]
        )
    return trimmed(Grid(columns, lines))


def attempts_grid(table: Table) -> Grid:
    """A row for each grid point whose evaluations made several attempts: solved by any, by vote, by the halt logit."""
    rows, columns = table.rows, ["grid point", "attempts", "one attempt", *CHOOSERS.values()]
    rows, lines = rows[(rows["split"] == "test") & rows["policy"].isin(CHOOSERS)], []
    for _, part in rows.groupby("point", sort=True):
        most = part["restarts"].max()

        def solved(policy: str, count: int, part: pd.DataFrame = part) -> str:
            own = part[(part["policy"] == policy) & (part["restarts"] == count)]
            mean = share(own["exact_accuracy"], float(part["puzzles"].iloc[0]))
            return percent(mean.value, mean.bounds)

        shown = [solved("oracle", 1), *(solved(policy, most) for policy in CHOOSERS)]
        lines.append([point_name(part["label"].iloc[0]), str(int(most)), *shown])
    return trimmed(Grid(columns, lines))


def trimmed(grid: Grid) -> Grid:
    """Without columns that say nothing in any row."""
    empty = [i for i in range(1, len(grid.columns)) if all(row[i] in ("–", "never") for row in grid.rows)]
    kept = [i for i in range(len(grid.columns)) if i not in empty]
    return Grid([grid.columns[i] for i in kept], [[row[i] for i in kept] for row in grid.rows])


def costs_grid(table: Table) -> Grid:
    """A row for each grid point: size, compute, time, memory, and the cost of reaching the targets."""
    rows = _points(table)
    reached = [goal for goal in TARGETS if rows[f"steps_to_{goal}"].notna().any()]
    columns = ["grid point", "parameters", "training FLOPs", "time per run", "puzzles/s", "peak memory"]
    columns += [f"to {goal} % (validation, Nsup steps)" for goal in reached]
    lines = []
    for _, part in rows.groupby("point", sort=True):
        lines.append(
            [
                point_name(part["label"].iloc[0]),
                f"{int(part['parameters'].iloc[0]):,}",
                number(float(part["train_flops"].iloc[0]), 2),
                duration(float(part["wall_seconds"].mean()) / 3600),
                number(_mean(part["rows_per_second"]), 2),
                measured("peak_memory_bytes", _mean(part["peak_memory_bytes"])),
                *(_price(part, goal) for goal in reached),
            ]
        )
    return trimmed(Grid(columns, lines))


def _price(part: pd.DataFrame, goal: int) -> str:
    """Steps, time and FLOPs to an accuracy: mean over the seeds that reach it, and how many do."""
    steps = pd.to_numeric(part[f"steps_to_{goal}"], errors="coerce")
    if not steps.notna().any():
        return "never"
    seconds, flops = _mean(part[f"seconds_to_{goal}"]), _mean(part[f"flops_to_{goal}"])
    text = f"{number(_mean(steps), 2)} steps, {duration((seconds or 0.0) / 3600)}, {number(flops, 2)} FLOPs"
    return text + (f" ({steps.notna().sum()} of {count(len(steps), 'seed')})" if steps.isna().any() else "")


def cost(sections: Sequence[Section], runs: dict[str, Any]) -> Grid:
    """Plan against actual device time, by experiment and in total (shared runs count once in the total)."""
    lines = []
    for section in sections:
        planned, done = section.planned_runs or section.runs, section.runs
        ratio = "–"
        # of what has run: unfinished is not cheap
        if section.hours and section.spec.planned_hours and done and planned:
            ratio = number(section.hours / (section.spec.planned_hours * done / planned), 2)
        actual, plan = duration(section.hours), duration(section.spec.planned_hours)
        lines.append([section.spec.name, f"{done} of {planned}", plan, actual, ratio])
    total = sum(run["device_seconds"] for run in runs.values()) / 3600 if runs else None
    lines.append(["all, each run once", str(len(runs)), "", duration(total), ""])
    return Grid(["experiment", "runs", "planned", "actual", "actual / planned, of what has run"], lines)
