"""Planned and measured time of runs of config/laptop.yaml, and a fit of config/hardware.yaml to the measured times.

python -m benchmarks.plan [--jobs 2] [--seed 0] [--write] [--json out.json]

Each job runs what the pipeline runs: `trm train` and `trm evaluate` on one thread, `--jobs` at once. To check the plan
on runs that it was not fitted to, run this with `--write`, then again with another `--seed`.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.frame import TRM, finish, parser, timed
from trm.pipeline.catalogue import dataset_name, source_name
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import open_project

BASE = "lr_schedule"
"""An experiment whose first run has the recipe of the base."""
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "narrow": {"model.d_model": 16},
    "wide": {"model.d_model": 96},
    "shallow recursion": {"model.h_cycles": 1, "model.l_cycles": 1},
    "deep recursion": {"model.l_cycles": 4},
    "attention": {"model.mixer": "attention"},
    "small batch": {"training.batch_size": 16},
    "large batch": {"training.batch_size": 256, "training.steps": 75, "training.warmup_steps": 15},
    "many supervision steps": {"model.halt_max_steps": 16},
}


def run(kind: str, folder: Path, seed: int) -> dict[str, Any]:
    """Plan one run, then train and evaluate it; return both times."""
    project = open_project({"study": "config/laptop.yaml", "set": KINDS[kind], "experiments": BASE})
    point = project.study.experiment(BASE).points[0]
    name, config = point.runs[0].name, point.runs[0].config
    cost = Estimates(project, measured=False).of(name)
    dataset, out = str(folder / dataset_name(config.data)), folder / "runs" / name
    kept, evaluation = str(folder / "checkpoints" / name), point.evaluation.model_dump_json()
    recipe = json.dumps(json.loads(project.catalogue.run_json(name)) | {"seed": seed})
    train = ["train", "--config", recipe, "--dataset", dataset, "--out", str(out), "--checkpoints", kept]
    train += ["--threads", "1"]
    train += ["--runtime", project.study.scale.runtime.model_dump_json(exclude_defaults=True)]
    evaluate = ["evaluate", "--run", str(out), "--dataset", dataset, "--threads", "1"]
    evaluate += ["--evaluation", evaluation, "--out", str(out / "evaluation.json")]
    wall, cpu = (sum(times) for times in zip(timed([*TRM, *train]), timed([*TRM, *evaluate]), strict=True))
    row = {"kind": kind, "planned": cost.seconds, "measured": wall, "ratio": wall / cost.seconds, "cpu": cpu}
    return row | {"terms": [1.0, cost.flops]}


def data(folder: Path) -> None:
    """Build the data set that all runs share."""
    project = open_project({"study": "config/laptop.yaml", "experiments": BASE})
    config = project.study.experiment(BASE).points[0].runs[0].config.data
    source, out = folder / source_name(config), folder / dataset_name(config)
    pool = project.catalogue.source_json(source_name(config))
    cut = project.catalogue.dataset_json(dataset_name(config))
    timed([*TRM, "data", "source", "--config", pool, "--files=", "--out", str(source)])
    timed([*TRM, "data", "build", "--config", cut, "--source", str(source), "--out", str(out)])


def write(path: Path, values: dict[str, str]) -> None:
    """Write the fitted values into the file's `laptop` entry; its comments and the other entries stay."""
    head, entry, rest = re.split(r"(?m)(^laptop:(?:.*\n)(?:[ ]+.*\n)+)", path.read_text(), maxsplit=1)
    for key, value in values.items():
        entry = re.sub(rf"(?m)^(  {key}:).*$", rf"\1 {value}", entry)
    path.write_text(head + entry + rest)


def fit(rows: list[dict[str, Any]]) -> tuple[dict[str, str], list[float]]:
    """Values for config/hardware.yaml by nonnegative least squares on relative errors, and measured / fitted.

    The `terms` of a row are one job and FLOPs.
    """
    matrix, times = (np.array([row[key] for row in rows]) for key in ("terms", "measured"))
    scale = matrix.max(axis=0)
    weights, _ = nnls(matrix / scale / times[:, None], np.ones(len(times)))
    fixed, per_flop = weights / scale
    values = {"fixed": f"{fixed:.2g}"}
    if per_flop:
        values["flops_per_second"] = f"{1 / per_flop:.2g}"
    return values, list(times / (matrix @ (weights / scale)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--jobs", type=int, default=2, help="jobs at once, as in the local profile")
    options.add_argument("--seed", type=int, default=0, help="seed of the trainings")
    options.add_argument("--write", action="store_true", help="write the fit into config/hardware.yaml")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(args.jobs) as pool:
        data(Path(place))
        start = time.perf_counter()
        rows = list(pool.map(lambda kind: run(kind, Path(place), args.seed), KINDS))
        wall = time.perf_counter() - start
    values, ratios = fit(rows)
    for row, ratio in zip(rows, ratios, strict=True):
        del row["terms"]
        row["ratio with the fit"] = ratio
    finish(rows, args.json, wall=wall, fit=values)
    planned, measured = (sum(row[key] for row in rows) for key in ("planned", "measured"))
    print(f"all jobs: measured / planned {measured / planned:.2f}; {args.jobs} at once took {wall:.1f} s")
    print(f"a fit to these runs: {values}")
    if args.write:
        write(Path("config/hardware.yaml"), values)


if __name__ == "__main__":
    main()
