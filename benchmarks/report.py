"""How long the analysis of a large study takes, and how large its report is.

The shipped study at scale tpu, with invented results for every run.

python -m benchmarks.report [--seeds 8] [--out DIR] [--json out.json]

Eight seeds make some 1,100 runs. The steps are the pipeline's own: tables, fits with all their refits, figures, report.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.analysis.synthetic import write_run
from trm.analysis.fits import fit_table
from trm.analysis.kinds import draw
from trm.analysis.kinds.common import save, styled
from trm.analysis.report import build, page, print_pdf
from trm.analysis.specs import ReportSpec, TableSpec
from trm.analysis.tables import collect, load, load_all
from trm.analysis.tables import save as save_table
from trm.io import write_json
from trm.pipeline.project import Project, open_project
from trm.pipeline.reporting import report_spec
from trm.study.schema import RunConfig

ROOT = Path(__file__).parents[1]


def error(config: RunConfig) -> float:
    """An invented law at the paper's scale."""
    model, training, data = config.model, config.training, config.data
    effective = (data.train_puzzles or 1000) * (1 + 15 * (1 - np.exp(-data.augmentations / 150)))
    found = 0.02 + 0.1 * (effective / 16000) ** -0.5 * (model.d_model / 512) ** -0.4
    found *= (training.steps * training.batch_size / 5e7) ** -0.3
    found *= (model.h_cycles * (model.l_cycles + 1) / 21) ** -0.5 * (1.7 if model.mixer == "attention" else 1)
    return float(np.clip(found * (1.5 if training.ema == 0 else 1), 0, 0.98))


def invent(project: Project, folder: Path) -> dict[str, TableSpec]:
    """Result files of every run, and the tables' specifications."""
    wanted: dict[str, list[Any]] = {}
    for experiment in project.study.experiments.values():
        for point in experiment.points:
            for run in point.runs:
                known = wanted.setdefault(run.name, [])
                if point.evaluation not in known:
                    known.append(point.evaluation)
    written = {
        name: write_run(folder, project.runs[name].config, error, evaluations)
        for name, evaluations in wanted.items()
    }
    specs = {}
    for name in project.selection.experiments:
        table = project.catalogue.table_spec(name)
        for point, resolved in zip(table["points"], project.study.experiment(name).points):
            runs = []
            for run in resolved.runs:
                entry, place = written[run.name], wanted[run.name].index(resolved.evaluation)
                runs.append({**entry, "run": run.name, "evaluations": [entry["evaluations"][place]]})
            point["runs"] = runs
        specs[name] = TableSpec.model_validate(table)
    return specs


@contextmanager
def timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    """Adds what the block took."""
    begun = time.perf_counter()
    yield
    seconds[what] = time.perf_counter() - begun


def main() -> None:
    """Print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, help="keep the report in this folder")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    kept = {name: path.resolve() if path else None for name, path in (("out", args.out), ("json", args.json))}
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "config", Path(place, "config"))
        os.chdir(place)
        study = yaml.safe_load(Path("config/experiments.yaml").read_text())
        study["scales"]["tpu"]["seeds"] = list(range(args.seeds))
        Path("config/experiments.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
        project = open_project({"scale": "tpu", "experiments": "*"})
        specs = invent(project, Path(place))
        seconds: dict[str, float] = {}
        with timed(seconds, "tables"):
            for name, spec in specs.items():
                save_table(collect(spec), project.catalogue.table_file(name))
        with timed(seconds, "fits"):
            for fit in project.selection.fits.values():
                tables = [project.catalogue.table_file(name) for name in fit.experiments]
                write_json(
                    f"results/fits/{fit.name}.json",
                    fit_table(load_all(tables, fit.spec.experiments), fit.spec),
                )
        with timed(seconds, "figures"):
            for figure in project.selection.shown:
                tables = [load(project.catalogue.table_file(name)) for name in figure.experiments]
                fits = [json.loads(Path(f"results/fits/{fit.name}.json").read_text()) for fit in figure.fits]
                with styled():
                    save(draw(figure.spec, tables, fits), f"results/figures/{figure.name}.pdf")
        with timed(seconds, "report"):
            report = build(ReportSpec.model_validate(report_spec(project)))
            Path("results/report.html").write_text(page(report))
            print_pdf(page(report, paper=True), "results/report.pdf")
        sizes = {name: Path("results", name).stat().st_size for name in ("report.html", "report.pdf")}
        if kept["out"]:
            kept["out"].mkdir(parents=True, exist_ok=True)
            for name in sizes:
                shutil.copy(f"results/{name}", kept["out"])
        os.chdir(ROOT)
    print(
        f"{len(project.runs)} runs, {len(specs)} experiments, {len(project.selection.shown)} figures, "
        f"{len(project.selection.fits)} fits"
    )
    for what, value in (*seconds.items(), ("all of it", sum(seconds.values()))):
        print(f"{what:<12}{value:>8.1f} s")
    for name, size in sizes.items():
        print(f"{name:<12}{size / 1e6:>8.1f} MB")
    if kept["json"]:
        kept["json"].write_text(
            json.dumps({"seconds": seconds, "bytes": sizes, "runs": len(project.runs)}, indent=1)
        )


if __name__ == "__main__":
    main()
