"""`python -m trm study`: list and show experiments, run them, and the small commands that rules call.

python -m trm study list --scale tpu
python -m trm study show data_size
python -m trm study run --profile profiles/local model_size
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Options by which a command sees the same study as the Snakefile."""
    parser.add_argument(
        "--study", default="config/experiments.yaml", help="the study's file (default: %(default)s)"
    )
    parser.add_argument("--scale", default="laptop", help="laptop, gpu or tpu (default: %(default)s)")
    add_set_option(parser)
    parser.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="as Snakemake's --config"
    )


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """`--set`: typed one-off overrides."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one-off override of every run, part of its identity: --set training.steps=1000,training.lr=1e-3; "
        "runtime.* is bookkeeping and part of none (may be repeated)",
    )


def workflow_of(args: argparse.Namespace) -> Any:
    """The Workflow that the options name."""
    from trm.pipeline.naming import parse_overrides
    from trm.pipeline.workflow import Workflow

    pairs = dict(pair.partition("=")[::2] for pair in args.config)
    overrides = parse_overrides(pairs.pop("set", "")) | parse_overrides(args.set)
    return Workflow({"study": args.study, "scale": args.scale, **pairs, "set": overrides})


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Options of `study`."""
    parser = subparsers.add_parser(
        "study",
        help="list, show and run experiments",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = parser.add_subparsers(dest="action", required=True)
    listing = commands.add_parser("list", help="every experiment of a scale: points, runs, question")
    show = commands.add_parser("show", help="one experiment, resolved: its points, runs and their settings")
    show.add_argument("experiment", help="name or older id")
    compare = commands.add_parser("compare", help="two finished runs: settings, results, curves side by side")
    compare.add_argument("runs", nargs=2, metavar="RUN", help="name, or a part of it that only one run has")
    compare.add_argument("--root", default="results/runs", help="folder of the runs (default: %(default)s)")
    compare.add_argument("--json", action="store_true", help="print JSON")
    spec = commands.add_parser("spec", help="the JSON that `table` and `report` read (called by rules)")
    spec.add_argument("what", choices=("table", "report"))
    spec.add_argument("name", nargs="?", default="")
    spec.add_argument("--options", default="", help="options of `study list` as one text")
    spec.add_argument("--root", default="", help="put before the runs' folders")
    spec.add_argument("--out", required=True)
    for command in (listing, show):
        add_study_options(command)
    publish = commands.add_parser("publish", help="put a figure where people look for it (called by rules)")
    publish.add_argument("--figure", required=True)
    publish.add_argument("--identity", required=True)
    publish.add_argument("--out", required=True)
    schema = commands.add_parser("schema", help="write the generated parts of config/ and docs/")
    schema.add_argument("--check", action="store_true", help="only say whether they are current")
    launch = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run snakemake; ends a stale lock first, writes results/launches/",
        description="Runs `snakemake` with whatever else is given: profile, targets, -n, --config ...",
    )
    add_set_option(launch)
    launch.set_defaults(arguments=[])  # whatever follows is handed to snakemake


def run(args: argparse.Namespace) -> int:
    """Dispatch to the action."""
    return globals()[f"_{args.action}"](args)


def _list(args: argparse.Namespace) -> int:
    workflow = workflow_of(args)
    for name, experiment in workflow.study.experiments.items():
        aliases = f" ({', '.join(experiment.definition.aliases)})" if experiment.definition.aliases else ""
        runs = len({run.name for point in experiment.points for run in point.runs})
        size = (
            f"not at this scale: {experiment.skip}"
            if experiment.skip
            else f"{len(experiment.points)} points, {runs} runs"
        )
        mark = "*" if name in workflow.selected else " "
        size += "".join(f"; {reason}" for reason in experiment.left_out)
        print(f"{mark} {name}{aliases}: {size}\n      {experiment.definition.question}")
    print("\n* part of `make report` at this scale, or already run")
    return 0


def _show(args: argparse.Namespace) -> int:
    import yaml

    workflow = workflow_of(args)
    experiment = workflow.study.experiment(args.experiment)
    print(f"{experiment.name}: {experiment.definition.question}\n{experiment.definition.hypothesis}")
    for point in experiment.points:
        print(f"\n{point.label}: {point.evaluation_file}")
        for run in point.runs:
            print(f"  {run.name}  data {workflow.dataset_of(run)}")
        differs = point.runs[0].config.model_dump(mode="json", exclude_defaults=True)
        print("  " + yaml.safe_dump(differs, sort_keys=False).rstrip().replace("\n", "\n  "))
    return 0


def _spec(args: argparse.Namespace) -> int:
    from trm.io import write_json
    from trm.pipeline.reporting import report_json

    options = argparse.ArgumentParser()
    add_study_options(options)
    workflow = workflow_of(options.parse_args(shlex.split(args.options)))
    if args.what == "report":
        document = report_json(workflow)
    else:
        document = workflow.table_json(workflow.tables.get(args.name, args.name), args.root)
    write_json(args.out, document)
    return 0


def _compare(args: argparse.Namespace) -> int:
    import json

    from trm.pipeline.compare import compare, find_run, text

    document = compare(*(find_run(name, args.root) for name in args.runs))
    print(json.dumps(document, indent=2) if args.json else text(document))
    return 0


def _publish(args: argparse.Namespace) -> int:
    from trm.pipeline.publish import publish

    publish(args.figure, args.identity, args.out)
    return 0


def _schema(args: argparse.Namespace) -> int:
    from pathlib import Path

    from trm.pipeline.experiment_docs import content
    from trm.study.documentation import write_or_check

    page = Path("docs/experiments.md")
    return write_or_check(args.check, {page: content(page)})


def _run(args: argparse.Namespace) -> int:
    from trm.pipeline.launch import launch, with_overrides

    return launch(with_overrides(args.arguments, args.set))
