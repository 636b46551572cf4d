"""`python -m trm tpu-check`: compile the training and evaluation steps for a TPU slice, without a TPU.

python -m trm tpu-check --scale tpu                        # every run of the study, on one host (4 chips)
python -m trm tpu-check --scale tpu --run NAME --topology v4-64
python -m trm tpu-check --run-config run.json --topology v4-64 --json
"""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Declare the command's options."""
    from trm.cli.study import add_study_options

    parser = subparsers.add_parser(
        "tpu-check",
        help="compile the training step for a TPU slice, without a TPU",
        description=__doc__.split("\n")[0],
    )
    add_study_options(parser)
    parser.add_argument(
        "--run", action="append", help="name of a run of the study (default: all; may be repeated)"
    )
    parser.add_argument(
        "--run-config", help="check this RunConfig instead: JSON text or a path to a JSON file"
    )
    parser.add_argument(
        "--topology", default="v4-8", help="slice that a job gets: v4-8 (one host), ..., v4-64"
    )
    parser.add_argument("--steps", choices=("train", "eval", "both"), default="both", help="which programs")
    parser.add_argument("--cache", default="results/tpu-check", help="folder of compiled programs' numbers")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table; 1 if a program does not fit, else 0."""
    import json
    import sys
    from pathlib import Path

    from trm.errors import UserError
    from trm.tpu_check.check import check, program_key, table
    from trm.tpu_check.slices import parse_slice

    where = parse_slice(args.topology)
    kinds = ("train", "eval") if args.steps == "both" else (args.steps,)
    results, seen = [], set()
    for name, config in _configs(args).items():
        for what in kinds:
            key = program_key(config, where, what)
            if key in seen:
                continue
            seen.add(key)
            try:
                results.append((name, check(config, where, what, Path(args.cache))))
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
            if not args.json:
                print(f"{name} {what}: done", file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps([{"run": name, **result._asdict()} for name, result in results], indent=1))
    else:
        print(table(results))
    return 0 if all(result.fits for _, result in results) else 1


def _configs(args: argparse.Namespace) -> dict[str, Any]:
    from trm.cli.arguments import load_config
    from trm.cli.study import workflow_of
    from trm.errors import UserError
    from trm.study.fingerprint import run_name
    from trm.study.overlay import nearest
    from trm.study.schema import RunConfig

    if args.run_config:
        config = load_config(RunConfig, args.run_config, "--run-config")
        return {run_name(config): config}
    runs = workflow_of(args).runs
    for name in args.run or ():
        if name not in runs:
            raise UserError(f"the study has no run {name!r}{nearest(name, runs)}")
    return {name: runs[name].config for name in args.run or runs}
