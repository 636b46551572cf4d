"""The paper's recipe on real hard puzzles, in stretches: `real_sudoku` at the gpu scale, one call after the other.

    python -m benchmarks.real --csv sudoku_forum_hardest.csv --work real --minutes 9 [--part-mb 15]

The first call cuts the data set (1,000 training puzzles by a nested, seeded choice; validation and test puzzles from
classes under the symmetries that no training puzzle belongs to). A stretch ends before its time is over with exit code
75 and with WORK/carry, the compact form of its checkpoint: that folder is all that the next call needs, on this machine
or another one. The last call evaluates the result as the experiment says and exits with 0. With
`--stop-at STEP` (in every call) the run has fewer steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from trm.__main__ import main as trm
from trm.errors import UserError
from trm.pipeline.workflow import Workflow
from trm.training.interrupt import EXIT_UNFINISHED

RESERVE = 45.0  # seconds for start, checkpoint and export
LAST_WORDS = "the run is finished: its evaluation is in"


def planned(csv: Path, scale: str, changes: dict[str, Any]) -> tuple[Workflow, Any, Any]:
    """The study, the one run of real_sudoku, and its evaluation."""
    workflow = Workflow(
        {"scale": scale, "experiments": "real_sudoku", "sudoku_csv": str(csv.resolve()), "set": changes}
    )
    point = workflow.study.experiment("real_sudoku").points[0]
    return workflow, point.runs[0], point.evaluation


def call(*arguments: str) -> None:
    """One of the project's commands; its failure ends this one."""
    code = trm(list(arguments))
    if code:
        raise SystemExit(code)


def build(workflow: Workflow, run: Any, work: Path) -> Path:
    """The data set, cut if it is not there."""
    source, dataset = work / workflow.source_of(run), work / workflow.dataset_of(run)
    config = run.config.data.model_dump_json()
    files = ",".join(run.config.data.files)
    if not (dataset / "manifest.json").exists():
        call("data", "source", "--config", config, "--files", files, "--out", str(source))
        call(
            "data",
            "build",
            "--config",
            config,
            "--files",
            files,
            "--source",
            str(source),
            "--out",
            str(dataset),
        )
    return dataset


def restore(carry: Path, checkpoints: Path) -> None:
    """Start from the carried checkpoint where there is none here."""
    if carry.exists() and not list(checkpoints.glob("step-*")):
        shutil.copytree(carry, checkpoints, dirs_exist_ok=True)


def export(checkpoints: Path, carry: Path, part_mb: float) -> None:
    """Replace the carried checkpoint by the newest one."""
    shutil.rmtree(carry, ignore_errors=True)
    call("checkpoints", "compact", str(checkpoints), "--to", str(carry), "--part-mb", str(part_mb))


def stretch(args: argparse.Namespace) -> int:
    """Train for the time given, then export or evaluate."""
    begun = time.monotonic()
    changes = json.loads(args.set)
    if args.stop_at:
        # a shorter run is another run: checkpoints of one do not serve the other
        changes["training.steps"] = args.stop_at
    workflow, run, evaluation = planned(args.csv, args.scale, changes)
    dataset = build(workflow, run, args.work)
    out, checkpoints, carry = args.work / "run", args.work / "checkpoints", args.work / "carry"
    restore(carry, checkpoints)
    if not (out / "training.json").exists():
        seconds = 60 * args.minutes - (time.monotonic() - begun) - args.reserve
        if seconds <= 0:
            raise UserError(
                f"--minutes {args.minutes:g} is over before training starts: give at least one more"
            )
        runtime = {"stop_after_minutes": seconds / 60, "carry_limit_mb": 0, "keep_checkpoints": 1}
        runtime |= {"checkpoint_minutes": 1e6, "log_every": args.log_every, "evals": args.evals}
        folders = ["--dataset", str(dataset), "--out", str(out), "--checkpoints", str(checkpoints)]
        threads = ["--threads", str(args.threads)] if args.threads else []
        code = trm(
            [
                "train",
                "--config",
                workflow.run_json(run.name),
                *folders,
                "--runtime",
                json.dumps(runtime),
                *threads,
            ]
        )
        if code not in (0, EXIT_UNFINISHED):
            return code
        export(checkpoints, carry, args.part_mb)
        if code:
            return code
    found = args.work / "evaluation.json"
    places = ["--run", str(out), "--dataset", str(dataset), "--out", str(found)]
    call("evaluate", *places, "--evaluation", evaluation.model_dump_json())
    print(f"{LAST_WORDS} {found}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--csv", type=Path, required=True, help="source,question,answer,rating")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of all files; WORK/carry is kept between calls"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="time of this call (default: %(default)s)")
    parser.add_argument("--reserve", type=float, default=RESERVE, help=argparse.SUPPRESS)
    parser.add_argument("--part-mb", type=float, default=64.0, help="largest file of WORK/carry in MiB")
    parser.add_argument("--stop-at", type=int, help="fewer steps than the recipe's; give it in every call")
    parser.add_argument("--scale", default="gpu", help="of config/experiments.yaml (default: %(default)s)")
    parser.add_argument("--set", default="{}", help="fields of the run to change, JSON")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--evals", type=int, default=40, help="validations in the whole run")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    try:
        return stretch(args)
    except UserError as error:
        print(f"benchmarks.real: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
