"""`python -m trm plan`: what would be trained, how long it takes and what it costs, before anything runs."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Options of `plan`."""
    from trm.cli.study import add_study_options

    parser = subparsers.add_parser(
        "plan", help="what would run, how long and at what cost", description=__doc__
    )
    add_study_options(parser)
    parser.add_argument(
        "--runs", action="store_true", help="a line for every run, not only for every experiment"
    )
    parser.add_argument("--jobs", type=int, help="jobs that run at once (default: of config/hardware.yaml)")
    parser.add_argument(
        "--budget-hours", type=float, help="say what this many device-hours buy, in which order"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    import json

    from trm.cli.study import workflow_of
    from trm.pipeline import plan

    workflow = workflow_of(args)
    budget = args.budget_hours or workflow.config.get("budget_hours")
    if budget is not None:
        budget = plan.hours(budget)
    document = plan.document(workflow, jobs=args.jobs, budget=budget)
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        print(plan.text(document, runs=args.runs))
    return 0
