"""`make bench`: ours against the baselines, as one table of ratios and benchmarks/out/bench.json.

    python -m benchmarks.run [step fixed_cost pipeline] [--quick]

About ten minutes on two cores; --quick about two: fewer rounds, one precision, fewer grid points. With a CUDA device
`step` runs the paper's models there at batch 768.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.frame import ROOT, Ratio, table

OUT = Path(__file__).parent / "out"
MINUTES = {"step": (9, 1), "fixed_cost": (0.6, 0.3), "pipeline": (0.6, 0.1)}
"""Benchmarks, and the minutes each takes on two cores, without and with --quick."""


def options(name: str, quick: bool) -> list[str]:
    """Arguments of a benchmark."""
    if name == "fixed_cost":
        return ["--rounds", "2" if quick else "5"]
    if name == "pipeline":
        return ["--points", "500" if quick else "5000", "--rounds", "1" if quick else "3"]
    import torch

    if torch.cuda.is_available():
        paper = ["--backend", "cuda", "--batch", "768", "--cases", "paper-mlp", "paper-attention"]
        return [*paper, "--precisions", "bfloat16", "--rounds", "3" if quick else "9"]
    cases = ["--cases", "laptop", "small", *(() if quick else ("paper-mlp", "paper-attention"))]
    # one thread: two wait for each other at every operation, which a busy machine punishes
    return [*cases, "--threads", "1", "--rounds", "3", *(("--precisions", "bfloat16") if quick else ())]


def run(name: str, quick: bool) -> list[Ratio]:
    """Run one benchmark and return its comparisons.

    Raises:
        subprocess.CalledProcessError: the benchmark failed; its own message is on the screen.
    """
    path = OUT / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *options(name, quick), "--json", str(path)]
    subprocess.run(command, check=True, cwd=ROOT)
    return [Ratio(**ratio) for ratio in json.loads(path.read_text())["ratios"]]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks and print their ratios; returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=(*MINUTES, []), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a shorter look, about two minutes")
    args = parser.parse_args(arguments)
    OUT.mkdir(exist_ok=True)
    found: list[Ratio] = []
    failed = 0
    names, began = args.names or list(MINUTES), time.perf_counter()
    for done, name in enumerate(names):
        left = sum(MINUTES[other][args.quick] for other in names[done:])
        minutes = (time.perf_counter() - began) / 60
        print(
            f"== {name}: {done + 1} of {len(names)}, {minutes:.1f} min so far, about {left:g} min left",
            flush=True,
        )
        try:
            found += run(name, args.quick)
        except subprocess.CalledProcessError as error:
            print(f"== {name} failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            failed += 1
    if found:
        missed = ["missed" if r.target and r.ratio < r.target else "" for r in found]
        print(table(r._asdict() | {"": word} for r, word in zip(found, missed, strict=True)))
        document = {"quick": args.quick, "ratios": [ratio._asdict() for ratio in found]}
        (OUT / "bench.json").write_text(json.dumps(document, indent=1))
        print(f"\n{OUT / 'bench.json'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
