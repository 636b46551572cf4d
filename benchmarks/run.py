"""`make bench`: ours against the baselines, as one table of ratios and benchmarks/out/bench.json.

    python -m benchmarks.run [step fixed_cost pipeline accuracy] [--quick]

About 14 minutes on two cores, with --quick about two: fewer rounds, one precision, fewer grid points. If there is a
CUDA device, `step` runs the paper's models on it at batch 768.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.frame import ROOT, Ratio, table

OUT = Path(__file__).parent / "out"
MINUTES = {"step": (9, 1), "fixed_cost": (0.6, 0.3), "pipeline": (0.6, 0.1), "accuracy": (4, 0.5)}
"""The benchmarks, and the minutes each takes on two cores without and with --quick."""


def options(name: str, quick: bool) -> list[str]:
    """Arguments of a benchmark."""
    if name == "fixed_cost":
        return ["--rounds", "2" if quick else "5"]
    if name == "pipeline":
        return ["--points", "500" if quick else "5000", "--rounds", "1" if quick else "3"]
    if name == "accuracy":
        return ["--cases", "6x6", *(() if quick else ("9x9",)), "--seeds", "5"]
    import torch

    if torch.cuda.is_available():
        paper = ["--backend", "cuda", "--batch", "768", "--cases", "paper-mlp", "paper-attention"]
        return [*paper, "--precisions", "bfloat16", "--rounds", "3" if quick else "9"]
    cases = ["--cases", "6x6-d64", *(() if quick else ("6x6-d8", "6x6-d128", "9x9-d64", "9x9-d128"))]
    # Two threads would wait for each other at every operation, which a busy machine punishes.
    return [*cases, "--threads", "1", "--rounds", "3", *(("--precisions", "bfloat16") if quick else ())]


def run(name: str, quick: bool) -> list[Ratio]:
    """Run one benchmark and return its comparisons; CalledProcessError: it failed and has printed why."""
    path = OUT / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *options(name, quick), "--json", str(path)]
    subprocess.run(command, check=True, cwd=ROOT)
    return [Ratio(**ratio) for ratio in json.loads(path.read_text())["ratios"]]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks, print their ratios and return the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=(*MINUTES, []), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="about two minutes")
    args = parser.parse_args(arguments)
    OUT.mkdir(exist_ok=True)
    found: list[Ratio] = []
    failed, names = 0, args.names or list(MINUTES)
    for number, name in enumerate(names):
        left = sum(MINUTES[other][args.quick] for other in names[number:])
        print(f"== {name}: {number + 1} of {len(names)}, about {left:g} min left", flush=True)
        try:
            found += run(name, args.quick)
        except subprocess.CalledProcessError as error:
            print(f"== {name} failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            failed += 1
    if found:
        print(table(r._asdict() | {"": "missed" if r.ratio < (r.target or 0) else ""} for r in found))
        document = {"quick": args.quick, "ratios": [ratio._asdict() for ratio in found]}
        (OUT / "bench.json").write_text(json.dumps(document, indent=1))
        print(f"\n{OUT / 'bench.json'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
