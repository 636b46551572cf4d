"""`python -m trm plan`: what would be trained, how long it would take and what it would cost."""

import argparse

from trm.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    add_study_options(parser)
    parser.add_argument("--runs", action="store_true", help="also a line for each run")
    parser.add_argument("--jobs", type=int, help="jobs that run at once (default: from config/hardware.yaml)")
    parser.add_argument("--budget-hours", help="list what this many device-hours buy, and in which order")
    parser.add_argument(
        "--grant-days", help="list what fits into this many days, in the order of the study's phases"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    import json

    from trm.cli.study import project_of
    from trm.pipeline import plan

    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: at least one job runs at once")
    for key in ("budget_hours", "grant_days"):
        if getattr(args, key) is not None:
            args.config.append(f"{key}={getattr(args, key)}")
    project = project_of(args)
    document = plan.document(project, at_once=args.jobs)
    if args.json:
        print(json.dumps(document, indent=2))
    elif not document["rows"]:
        print("Nothing to do: all that was asked for exists.")
    else:
        print(plan.text(document, runs=args.runs))
    return 0
