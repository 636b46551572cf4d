"""`make bench`: ours against baselines, as one table of ratios and benchmarks/out/bench.json.

    python -m benchmarks.run [NAME ...] [--quick]

Names: step data fixed_cost pipeline (the default; about twelve minutes on two cores, with --quick about two: fewer
rounds, one precision, a fifth of the data work), and fits faults pod_load pod_faults, which print tables of their own.
On a machine with a CUDA device `step` runs the paper's models there at batch 768.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
OUT = HERE / "out"
COMPARED = ("step", "data", "fixed_cost", "pipeline")
MINUTES = {
    False: {"step": 9, "data": 1.5, "fixed_cost": 0.6, "pipeline": 0.6},
    True: {"step": 1, "data": 0.4, "fixed_cost": 0.3, "pipeline": 0.1},
}
"""Expected minutes of each on two cores, for the time left; by `--quick`."""
OTHERS = ("fits", "faults", "pod_load", "pod_faults")
SECONDS_ALLOWED = {
    ("shipped study", "snakemake -n -q"): 2.0,
    ("5000 points", "parse"): 3.0,
    ("5000 points", "snakemake -n -q"): 15.0,
}
"""Targets of the pipeline benchmark, wall seconds."""


class Ratio(NamedTuple):
    """One comparison. More than 1: ours is better by that factor."""

    group: str
    name: str
    ratio: float
    low: float | None
    high: float | None
    """Quartiles over paired rounds, or extremes; None without a spread."""
    target: float | None
    against: str


def ratios_of(name: str, written: dict[str, Any]) -> list[Ratio]:
    """The comparisons in the JSON document that benchmark `name` wrote."""
    if name == "step":
        return [
            Ratio(
                f"{found['what']}, {found['precision']}",
                f"{found['case']}, {found['batch']} rows",
                found["ratio"],
                *found["ratio_quartiles"],
                found["target"],
                f"plain PyTorch, {found['baseline']}",
            )
            for found in sorted(written["results"], key=lambda r: (r["what"] != "train", r["precision"]))
        ]
    if name == "data":
        lines = ((line, found) for line, found in written["lines"].items() if "ratio" in found)
        return [Ratio("data", line, found["ratio"], None, None, None, "plain loop") for line, found in lines]
    group = "seconds allowed / taken"
    if name == "fixed_cost":
        allowed, taken = written["allowed"], written["commands"]["run"]
        ratio, *spread = (allowed / taken[key] for key in ("wall", "wall_most", "wall_least"))
        return [Ratio(group, "fixed cost of a run", ratio, *spread, 1.0, f"{allowed:g} s")]
    rows = []
    for study, commands in written.items():
        for command, taken in commands.items():
            if allowed := SECONDS_ALLOWED.get((study, command)):
                ratio, *spread = (allowed / taken[key] for key in ("median", "max", "min"))
                rows.append(Ratio(group, f"{command}, {study}", ratio, *spread, 1.0, f"{allowed:g} s"))
    return rows


def table(found: list[Ratio]) -> str:
    """The comparisons as lines of text."""
    lines = [f"{'':<26}{'':<34}{'ratio':>7}  {'spread':<13}{'target':>7}  against"]
    for r in found:
        spread = "" if r.low is None else f"{r.low:.2f}-{r.high:.2f}"
        target = "" if r.target is None else f"{r.target:.1f}"
        short = " (missed)" if r.target is not None and r.ratio < r.target else ""
        lines.append(f"{r.group:<26}{r.name:<34}{r.ratio:>7.2f}  {spread:<13}{target:>7}  {r.against}{short}")
    return "\n".join(lines)


def options(name: str, quick: bool) -> list[str]:
    """Arguments of a benchmark."""
    if name == "step":
        import torch

        if torch.cuda.is_available():
            paper = ["--backend", "cuda", "--batch", "768", "--cases", "paper-mlp", "paper-attention"]
            return [*paper, "--precisions", "bfloat16", "--rounds", "3" if quick else "9"]
        cases = ["--cases", "laptop", "small", *(() if quick else ("paper-mlp", "paper-attention"))]
        # one thread: two wait for each other at every operation, which a busy machine punishes
        return [*cases, "--threads", "1", "--rounds", "3"] + (["--precisions", "bfloat16"] if quick else [])
    if name == "data":
        return ["--repeats", "1", "--scale", "5"] if quick else ["--repeats", "3"]
    if name == "fixed_cost":
        return ["--rounds", "2" if quick else "5"]
    if name == "pipeline":
        return ["--points", "500" if quick else "5000", "--runs", "1" if quick else "3"]
    return []


def run(name: str, quick: bool) -> dict[str, Any] | None:
    """Run one benchmark and return the document it wrote; None if it only prints.

    Raises:
        subprocess.CalledProcessError: the benchmark failed; its own message is on the screen.
    """
    print(f"== {name}", flush=True)
    started, path = time.perf_counter(), OUT / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *options(name, quick)]
    if name in COMPARED:
        command += ["--json", str(path)]
    subprocess.run(command, check=True, cwd=HERE.parent)
    print(f"== {name}: {time.perf_counter() - started:.0f} s\n", flush=True)
    return json.loads(path.read_text()) if name in COMPARED else None


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks and print their ratios; returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=(*COMPARED, *OTHERS, []), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a shorter look, about two minutes")
    args = parser.parse_args(arguments)
    OUT.mkdir(exist_ok=True)
    found: list[Ratio] = []
    failed = 0
    load = os.getloadavg()[0]
    names, began = args.names or COMPARED, time.perf_counter()
    for done, name in enumerate(names):
        left = sum(MINUTES[args.quick].get(other, 0) for other in names[done:])
        minutes = (time.perf_counter() - began) / 60
        print(f"== {done + 1} of {len(names)}, {minutes:.1f} min so far, about {left:g} min left", flush=True)
        try:
            written = run(name, args.quick)
        except subprocess.CalledProcessError as error:
            print(f"== {name} failed with exit code {error.returncode}\n", file=sys.stderr, flush=True)
            failed += 1
        else:
            found += ratios_of(name, written) if written else []
    if found:
        print(table(found))
        document = {"quick": args.quick, "load_before": load, "ratios": [ratio._asdict() for ratio in found]}
        (OUT / "bench.json").write_text(json.dumps(document, indent=1))
        print(f"\n{OUT / 'bench.json'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
