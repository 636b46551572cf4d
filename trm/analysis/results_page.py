"""docs/results.md, written from the kept results: every number on it comes from a table beside it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import Any

from trm.analysis.report.contents import Grid
from trm.analysis.report.grids import results_grid
from trm.analysis.tables import Table, load
from trm.analysis.words import count, duration, listed, percent, point_name

WIDTH = 120
HEAD = """# Results

Measured results only, with 95 % intervals over seeds. This page is written by the command below from the tables in
`docs/results/`, which also redraws every figure; `note.md` in a folder holds what its table does not say.

    python -m trm.analysis.redraw docs/results --out figures --page docs/results.md
    python -m trm results keep docs/results            # after a study: its tables and figures' specs go there
"""


def results_page(results: Path, drawn: dict[str, dict[str, Any]]) -> str:
    """The page's text.

    Args:
        results: folder of the kept results.
        drawn: the JSON of every figure by name, as `redraw` has just written it.
    """
    parts = [HEAD]
    for folder in sorted(path.parent for path in results.rglob("figures.json")):
        table = load(str(folder / "table.csv"))
        names = list(json.loads((folder / "figures.json").read_text(encoding="utf-8")))
        parts.append(_section(folder, table, [drawn[name] for name in names]))
    return "\n".join(parts)


def _section(folder: Path, table: Table, figures: list[dict[str, Any]]) -> str:
    info = table.info
    runs = list(info["runs"].values())
    seeds = sorted(set(table.rows["seed"]))
    hours = sum(run["device_seconds"] for run in runs) / 3600
    facts = (
        f"{count(len(runs), 'run')}, seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}, "
        f"{duration(hours)} of device time, commits {listed(info['commits'])}; table: `{folder.name}/table.csv`."
    )
    lines = [f"## {info['experiment']} at scale {info['scale']}\n", fill(facts, WIDTH) + "\n"]
    note = folder / "note.md"
    if note.exists():
        lines.append(note.read_text(encoding="utf-8").strip() + "\n")
    said = [f"- **{figure['title']}.** {figure['sentence']}" for figure in figures if figure["sentence"]]
    lines += [fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in said]
    lines += ["", _markdown(results_grid(table)), ""]
    steps = _by_steps(table)
    return "\n".join([*lines, _markdown(steps), ""] if steps else lines)


def _by_steps(table: Table) -> Grid | None:
    """Solved share by grid point and supervision steps at test time; None: one number of steps was measured."""
    rows = table.select(columns=["eval_steps"])
    steps = sorted(rows["eval_steps"].unique())
    if len(steps) < 2:
        return None
    lines = []
    for _, part in rows.groupby("point", sort=True):
        means = part.groupby("eval_steps")["exact_accuracy"].mean()
        shown = [percent(float(means[at])) if at in means else "–" for at in steps]
        lines.append([point_name(part["label"].iloc[0]), *shown])
    return Grid(["solved after steps", *(f"{int(at)}" for at in steps)], lines)


def _markdown(grid: Grid) -> str:
    rows = [grid.columns, ["---"] * len(grid.columns), *grid.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
