"""Seconds to parse the shipped study, and one with many grid points, and to run `snakemake -n` on them.

python -m benchmarks.pipeline [--points 5000] [--rounds 3] [--json out.json]

`plain`: a workflow of as many trainings and evaluations whose files are constants, which is what Snakemake itself
takes. `ratio`: CPU seconds of ours over its, the median of rounds in which both took turns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.frame import ROOT, finish, parser, spread, timed
from trm.pipeline.project import open_project

PARSE = (
    "from trm.pipeline.project import open_project; p = open_project({'study': 'config/laptop.yaml'}); "
    "p.check_figures(); p.check_sizes(); p.report_identity"
)
DRY_RUN = [sys.executable, "-m", "snakemake", "-n", "-q"]
COMMANDS = {
    "plain": [*DRY_RUN, "--snakefile", "plain.smk"],
    "snakemake -n -q": [*DRY_RUN, "--profile", "profiles/local"],
    "parse": [sys.executable, "-c", PARSE],
}
PLAIN = """
RUNS = range({runs})
rule table:
    input: expand("runs/{{run}}/{{file}}", run=RUNS, file=["evaluation-0.json", "training.json", "history.csv"])
    output: "table.csv"
    shell: "touch {{output}}"
rule dataset:
    output: "data/manifest.json"
    shell: "touch {{output}}"
rule train:
    input: "data/manifest.json"
    output: "runs/{{run}}/training.json", "runs/{{run}}/history.csv", "runs/{{run}}/weights.safetensors"
    log: "logs/train/{{run}}.log"
    resources: mem_mb=1000, runtime=10
    shell: "touch {{output}}"
rule evaluate:
    input: "runs/{{run}}/training.json", "runs/{{run}}/weights.safetensors", "data/manifest.json"
    output: "runs/{{run}}/evaluation-{{name}}.json"
    log: "logs/evaluate/{{run}}-{{name}}.log"
    resources: mem_mb=1000, runtime=10
    shell: "touch {{output}}"
"""


def project(folder: Path, points: int) -> None:
    """Copy the pipeline with a study of one experiment with `points` grid points (0: the shipped study), and write the
    plain workflow of as many runs."""
    for name in ("Snakefile", "workflow", "profiles", "config", "envs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
    study = folder / "config/laptop.yaml"
    if points:
        document = yaml.safe_load(study.read_text())
        for shared in ("extends", "report", "study", "figures"):
            document.pop(shared, None)
        document["scales"]["laptop"]["seeds"] = [0]
        grid = {"product": {"training.steps": list(range(100, 100 + points))}}
        figures = [{"kind": "law", "x": "train_flops"}]
        document["experiments"] = {"many": {"question": "Many?", "grid": grid, "figures": figures}}
        study.write_text(yaml.safe_dump(document))
    known = open_project({"study": str(study)})
    names = known.selection.experiments
    runs = {run for name in names for run in known.study.experiment(name).runs}
    (folder / "plain.smk").write_text(PLAIN.format(runs=len(runs)))


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--points", type=int, default=5000)
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    for points in (0, args.points):
        study = f"{points} points" if points else "shipped study"
        with tempfile.TemporaryDirectory() as folder:
            project(Path(folder), points)
            rounds = [
                {name: timed(command, Path(folder)) for name, command in COMMANDS.items()}
                for _ in range(args.rounds)
            ]
        for name in COMMANDS:
            walls, processor = zip(*(turn[name] for turn in rounds), strict=True)
            ratio = median(turn[name][1] / turn["plain"][1] for turn in rounds)
            cpu = spread(processor)["median"]
            rows.append({"study": study, "command": name, **spread(walls), "CPU s": cpu, "ratio": ratio})
    finish(rows, args.json)


if __name__ == "__main__":
    main()
