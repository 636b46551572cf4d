"""How long the pipeline thinks: `snakemake -n` for the shipped study and for 5,000 grid points, parsing alone, memory.

python benchmarks/pipeline.py [--points 5000] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def project(folder: Path, points: int) -> None:
    """A copy of the pipeline whose study is one experiment of many points (or the shipped study for 0)."""
    for name in ("Snakefile", "workflow", "profiles", "config", "envs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
    if points:
        document = yaml.safe_load((folder / "config/experiments.yaml").read_text())
        laptop = document["scales"]["laptop"] | {"report": [], "study": [], "seeds": [0]}
        grid = {"product": {"training.steps": list(range(100, 100 + points))}}
        figures = [{"kind": "law", "x": "train_flops"}]
        document["scales"] = {"laptop": laptop}
        document["experiments"] = {"many": {"question": "Many?", "grid": grid, "figures": figures}}
        document["figures"] = []
        (folder / "config/experiments.yaml").write_text(yaml.safe_dump(document))


def timed(command: list[str], folder: Path, runs: int) -> dict[str, float]:
    """Median and range of wall seconds of a command."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


def main() -> None:
    """Print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    parse = (
        "from trm.pipeline.project import open_project; p = open_project({}); p.check(); "
        "p.published.report_identity"
    )
    results = {}
    for name, points in (("shipped study", 0), (f"{args.points} points", args.points)):
        with tempfile.TemporaryDirectory() as folder:
            project(Path(folder), points)
            dry = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "-n", "-q"]
            results[name] = {
                "parse": timed([sys.executable, "-c", parse], Path(folder), args.runs),
                "snakemake -n -q": timed(dry, Path(folder), args.runs),
            }
    print(f"{'':<18}{'':<18}{'median s':>10}{'min':>8}{'max':>8}")
    for name, rows in results.items():
        for what, value in rows.items():
            print(f"{name:<18}{what:<18}{value['median']:>10.2f}{value['min']:>8.2f}{value['max']:>8.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
