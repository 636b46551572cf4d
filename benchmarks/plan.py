"""How far the plan is from the truth: runs of every kind at laptop scale, planned and measured.

python -m benchmarks.plan [--kinds 9] [--jobs 2] [--seed 0] [--write] [--json out.json]

Each job is what the pipeline runs: `trm train` and `trm evaluate` on one thread, `--jobs` at once. Prints planned and
measured seconds a kind, and what config/hardware.yaml should say by a fit to these runs; `--write` writes it there. A
plan is checked on runs that it was not fitted to: `--write`, then once more with another `--seed`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from trm.pipeline.estimates import Estimates
from trm.pipeline.naming import dataset_name, source_name
from trm.pipeline.project import open_project
from trm.study.schema import RunConfig

KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "narrow": {"model.d_model": 16},
    "wide": {"model.d_model": 96},
    "shallow recursion": {"model.h_cycles": 1, "model.l_cycles": 1},
    "deep recursion": {"model.l_cycles": 4},
    "attention": {"model.mixer": "attention", "model.position": "rope"},
    "small batch": {"training.batch_size": 16},
    "large batch": {"training.batch_size": 256, "training.steps": 75, "training.warmup_steps": 15},
    "many supervision steps": {"model.halt_max_steps": 16},
}


def run(kind: str, changes: dict[str, Any], folder: Path, seed: int) -> dict[str, Any]:
    """Plan one run, then train and evaluate it; returns both times."""
    project = open_project({"scale": "laptop", "set": changes, "experiments": "baseline"})
    point = project.study.experiment("baseline").points[0]
    name = point.runs[0].name
    config = point.runs[0].config
    cost = Estimates(project).of(name)
    dataset = folder / dataset_name(point.runs[0].config.data)
    out = folder / "runs" / name
    trm = [sys.executable, "-m", "trm"]
    runtime = project.study.scale.runtime.model_dump_json(exclude_defaults=True)
    recipe = json.dumps(json.loads(project.catalogue.run_json(name)) | {"seed": seed})
    train = [*trm, "train", "--config", recipe, "--dataset", str(dataset), "--out", str(out)]
    kept, evaluation = str(folder / "checkpoints" / name), point.evaluation.model_dump_json()
    train += [
        "--checkpoints",
        kept,
        "--threads",
        "1",
        "--runtime",
        runtime,
        "--evaluations",
        f"[{evaluation}]",
    ]
    evaluate = [*trm, "evaluate", "--run", str(out), "--dataset", str(dataset), "--threads", "1"]
    evaluate += ["--evaluation", evaluation, "--out", str(out / "evaluation.json"), "--ahead", kept]
    wall, processor = (sum(times) for times in zip(timed(train), timed(evaluate)))
    return {
        "kind": kind,
        "planned": cost.seconds,
        "measured": wall,
        "processor": processor,
        "terms": terms(config, cost.flops),
    }


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a process; on a busy machine the second tells more."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime


def terms(config: RunConfig, flops: float) -> list[float]:
    """What the plan's seconds are made of: one job, block applications, FLOPs."""
    model = config.model
    applications = model.layers * model.h_cycles * (model.l_cycles + 1) * config.training.steps
    return [1.0, float(applications), flops]


def data(folder: Path) -> None:
    """The data set that all runs share (none of the kinds changes the data)."""
    project = open_project({"scale": "laptop", "experiments": "baseline"})
    sample = project.study.experiment("baseline").points[0].runs[0]
    source = folder / source_name(sample.config.data)
    trm = [sys.executable, "-m", "trm", "data"]
    pool = project.catalogue.source_json(source_name(sample.config.data))
    cut = project.catalogue.dataset_json(dataset_name(sample.config.data))
    out = folder / dataset_name(sample.config.data)
    for command in (
        [*trm, "source", "--config", pool, "--files=", "--out", str(source)],
        [*trm, "build", "--config", cut, "--source", str(source), "--out", str(out)],
    ):
        subprocess.run(command, check=True, capture_output=True)


def write(path: Path, values: dict[str, str]) -> None:
    """Put the fitted values into the file's `laptop` entry; its comments and the other entries stay."""
    head, entry, rest = re.split(r"(?m)(^laptop:(?:.*\n)(?:[ ]+.*\n)+)", path.read_text(), maxsplit=1)
    for key, value in values.items():
        entry = re.sub(rf"(?m)^(  {key}:).*$", rf"\1 {value}", entry)
    path.write_text(head + entry + rest)


def main() -> None:
    """Print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="only the first so many")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at once, as in the local profile")
    parser.add_argument("--seed", type=int, default=0, help="of the trainings: another one makes other runs")
    parser.add_argument("--write", action="store_true", help="the fit into config/hardware.yaml")
    parser.add_argument("--json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data(folder)
        begun = time.perf_counter()
        with ThreadPoolExecutor(args.jobs) as pool:
            chosen = list(KINDS.items())[: args.kinds]
            found = list(pool.map(lambda item: run(*item, folder, args.seed), chosen))
        wall = time.perf_counter() - begun
    print(f"{'kind':<26}{'planned s':>10}{'measured s':>12}{'measured / planned':>20}{'processor s':>13}")
    for row in found:
        ratio = row["measured"] / row["planned"]
        print(
            f"{row['kind']:<26}{row['planned']:>10.1f}{row['measured']:>12.1f}{ratio:>20.2f}{row['processor']:>13.1f}"
        )
    planned, measured, spent = (
        sum(row[key] for row in found) for key in ("planned", "measured", "processor")
    )
    print(f"{'all jobs':<26}{planned:>10.1f}{measured:>12.1f}{measured / planned:>20.2f}{spent:>13.1f}")
    print(f"{'wall, at once: ' + str(args.jobs):<26}{planned / args.jobs:>10.1f}{wall:>12.1f}")
    matrix = np.array([row["terms"] for row in found])
    times = np.array([row["measured"] for row in found])
    scale = matrix.max(axis=0)
    weights, _ = nnls(matrix / scale / times[:, None], np.ones(len(times)))
    fixed, application, per_flop = weights / scale
    speed = f"{1 / per_flop:.2g}" if per_flop else "without effect here"
    print(f"a fit says fixed: {fixed:.2g}, application: {application:.2g}, flops_per_second: {speed}")
    fitted = matrix @ (weights / scale)
    print("with it: " + ", ".join(f"{m / f:.2f}" for m, f in zip(times, fitted)))
    if args.write:
        fit = {"fixed": f"{fixed:.2g}", "application": f"{application:.2g}"}
        write(Path("config/hardware.yaml"), fit | ({"flops_per_second": speed} if per_flop else {}))
    if args.json:
        Path(args.json).write_text(json.dumps({"rows": found, "wall": wall}, indent=1))


if __name__ == "__main__":
    main()
