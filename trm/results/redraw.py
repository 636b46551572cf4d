"""Draw the figures of kept results again, without runs, checkpoints or pipeline, and write the pages about them.

    python -m trm.results.redraw docs/results --out figures --write

Every folder below the first argument that has a `figures.json` (name -> a figure's spec) and a `table.csv`, as a study
writes it, with `table.csv.json` and `table.csv.curves.csv` beside it, gives its figures as OUT/<name>.pdf, .png, .json.
The figures of several tables are in `figures.json` of the first argument; each lists the folders of its `tables`.
The laws that they show are fitted anew.
"""

import argparse
import shutil
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd
from PIL import Image

from trm.analysis.drawing import save, styled
from trm.analysis.kinds import FIGURE, fit_and_draw
from trm.analysis.report.contents import Grid
from trm.analysis.report.grids import results_grid
from trm.analysis.tables import Table, load
from trm.analysis.words import count, duration, listed, percent, point_name
from trm.errors import UserError
from trm.io import read_json, write_text
from trm.results.quotes import quoted
from trm.study.reading import parse

WIDTH = 120
PICTURE = "scaling_laws.png"
"""The figure that README shows."""
PICTURES = "images/results"
"""Folder in docs/ of the pictures on the pages of kept results."""
ALL = """# All experiments

One page for each kept experiment, with its figure and its table. The answer is the first that its figures give.
[Results](../results.md) has the findings in the order of the plan.

| experiment | answer | runs |
|---|---|---|
"""
FINDINGS = "findings.csv"
"""The findings of a folder's figures, which quotes read."""
MOST = 8
"""Findings of a figure on a page."""
HOW = """Written from `table.csv` by `python -m trm.results.redraw docs/results --out figures --write`, which also
redraws the figures; `note.md` holds what the table does not say. [All results](../../results.md)
"""


def redraw(results: Path, out: Path) -> list[Path]:
    """Draw everything; returns the PDFs. UserError: where there is nothing to draw, or a table or a spec is not what it
    should be."""
    kept = sorted(results.rglob("figures.json"))
    if not kept:
        raise UserError(f"{results} holds no figures.json: give the folder of kept results, docs/results")
    out.mkdir(parents=True, exist_ok=True)
    drawn = []
    for path in kept:
        for name, fields in read_json(path).items():
            target = out / f"{name}.pdf"
            tables = [load(path.parent / folder / "table.csv") for folder in fields.pop("tables", ["."])]
            spec = parse(FIGURE, fields, f"{path}: {name}")
            with styled():
                save(fit_and_draw(spec, tables[0].experiment, tables), target)
            drawn.append(target)
    return drawn


def texts(results: Path, drawn: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """Every text that comes from kept results: a page in each folder, and README and docs with their quotes.

    Args:
        results: the folder docs/results of a checkout.
        drawn: the JSON of every figure by name, as `redraw` has just written it.
    """
    folders = sorted(path.parent for path in results.rglob("figures.json") if path.parent != results)
    rows = {folder.name: _findings(folder, drawn) for folder in folders}
    notes = {path: quoted(path.read_text("utf-8"), results, rows) for path in results.rglob("note.md")}
    found, lines = dict(notes), []
    for folder in folders:
        table = load(folder / "table.csv")
        figures = [drawn[name] for name in read_json(folder / "figures.json")]
        found[folder / FINDINGS] = pd.DataFrame(rows[folder.name]).to_csv(index=False, lineterminator="\n")
        picture = f"../../{PICTURES}/{next(iter(read_json(folder / 'figures.json')))}.png"
        found[folder / "README.md"] = _page(table, notes.get(folder / "note.md", ""), figures, picture)
        answer = next((figure["answer"] for figure in figures if figure["answer"]), "")
        name, runs = table.info["experiment"], len(table.info["runs"])
        lines.append(f"| [{name}]({folder.name}/README.md) | {answer} | {runs} |\n")
    found[results / "all.md"] = ALL + "".join(lines)
    docs = results.parent
    for path in (docs.parent / "README.md", *sorted(docs.glob("*.md"))):
        found[path] = quoted(path.read_text("utf-8"), results, rows)
    return found


def _findings(folder: Path, drawn: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings of a folder's figures, named after the figure, each once."""
    found: dict[str, dict[str, Any]] = {}
    for name in read_json(folder / "figures.json"):
        for row in drawn[name]["findings"]:
            found.setdefault(row["text"] + str(row["value"]), {"figure": name, **row})
    return list(found.values())


def pictures(results: Path) -> dict[str, str]:
    """Figures of which docs/ keeps a picture, name -> kind: the first of each folder, and the first of each kind."""
    kept, kinds = {}, set()
    for path in sorted(results.rglob("figures.json")):
        for at, (name, fields) in enumerate(read_json(path).items()):
            if path.parent != results and (at == 0 or fields["kind"] not in kinds):
                kept[name] = fields["kind"]
            kinds.add(fields["kind"])
    return kept


def _keep_picture(source: Path, target: Path) -> None:
    """A PNG of a figure as a page needs it: at most 1,400 pixels wide, 64 colours."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as image:
        small = image.convert("RGB")
    small.thumbnail((1400, 4000), Image.Resampling.LANCZOS)
    small.quantize(64).save(target, optimize=True)


def _page(table: Table, note: str, figures: list[dict[str, Any]], picture: str) -> str:
    info = table.info
    runs = list(info["runs"].values())
    seeds = sorted(set(table.rows["seed"]))
    hours = sum(run["device_seconds"] for run in runs) / 3600
    facts = (
        f"{count(len(runs), 'run')}, seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}, "
        f"{duration(hours)} of device time, commits {listed(info['commits'])}"
        + " (+: with local changes that no commit holds)" * any(run["dirty"] for run in runs)
        + "."
    )
    lines = [f"# {info['experiment']} at scale {info['scale']}\n", f"![{figures[0]['title']}]({picture})\n"]
    lines += [fill(facts, WIDTH) + "\n"]
    lines += [note.strip() + "\n"] if note else []
    told: dict[tuple[str, str], None] = {}
    for figure in figures:  # a heat map of many cells has a finding for each: the established ones first
        rows = sorted(figure["findings"], key=lambda row: row["verdict"] == "undecided")
        told |= dict.fromkeys((row["verdict"], row["text"]) for row in rows[:MOST])
    if told:
        lines += [_markdown(Grid(["verdict", "finding"], [list(row) for row in told])), ""]
    if any(len(figure["findings"]) > MOST for figure in figures):
        lines += [f"At most {MOST} findings a figure are shown; `{FINDINGS}` has all.\n"]
    lines += [_markdown(results_grid(table)), ""]
    steps = _by_steps(table)
    return "\n".join([*lines, *([_markdown(steps), ""] if steps else []), HOW])


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--write", action="store_true", help="also write the pages and quotes of the checkout"
    )
    args = parser.parse_args()
    try:
        drawn = redraw(args.results, args.out)
        for path in drawn:
            print(path)
        facts = {path.stem: read_json(path.with_suffix(".json")) for path in drawn}
        for path, text in texts(args.results, facts).items() if args.write else ():
            write_text(path, text)
        if args.write:
            docs = args.results.parent
            shutil.copy(args.out / PICTURE, docs / "images" / PICTURE)
            shutil.rmtree(docs / PICTURES, ignore_errors=True)
            for name in pictures(args.results):
                _keep_picture(args.out / f"{name}.png", docs / PICTURES / f"{name}.png")
    except UserError as error:
        print(f"redraw: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
