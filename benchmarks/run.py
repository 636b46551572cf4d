"""`make bench`: ours against baselines, as ratios, with one JSON file and one figure under benchmarks/out/.

    python -m benchmarks.run [NAME ...] [--quick]

Names: step data fixed_cost pipeline (these four without names, about twelve minutes on two cores; with
--quick about one: fewer rounds, one precision, a fifth of the data work), and fits faults pod_load
pod_faults, which print tables of their own. `step` runs on the CUDA device where there is one, with the paper's
models at batch 768.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, draw, ratios_of, table

HERE = Path(__file__).parent
OUT = HERE / "out"
COMPARED = ("step", "data", "fixed_cost", "pipeline")
MINUTES = {
    False: {"step": 9, "data": 1.5, "fixed_cost": 0.6, "pipeline": 0.6},
    True: {"step": 0.3, "data": 0.4, "fixed_cost": 0.3, "pipeline": 0.1},
}
"""Expected of each on two cores, for the time left; by `--quick`."""
OTHERS = ("fits", "faults", "pod_load", "pod_faults")


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
    """Run one benchmark; what it wrote, nothing if it writes no ratios.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on the screen.
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
    """Run the benchmarks, print and draw their ratios; returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=(*COMPARED, *OTHERS, []), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a look in a minute")
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
        draw(found, OUT)
        print(f"\n{OUT / 'bench.json'}, bench.pdf and bench.png")
    return failed


if __name__ == "__main__":
    sys.exit(main())
