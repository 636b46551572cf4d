"""`python -m trm study`: list, show and compare experiments, and run them.

python -m trm study list
python -m trm study show data_size --study config/laptop.yaml
python -m trm study run --profile profiles/local model_size
python -m trm study init my-study
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from trm.study.text import count

if TYPE_CHECKING:
    from trm.pipeline.project import Project


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Options by which a command sees the same study as the Snakefile."""
    parser.add_argument("--study", help="the study's file (default: config/experiments.yaml)")
    parser.add_argument("--scale", help="tpu or gpu: one of the study's `scales` (default: its first)")
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
        "runtime.* does not change the identity (may be repeated)",
    )


def project_of(args: argparse.Namespace) -> Project:
    from trm.errors import UserError
    from trm.pipeline.project import open_project
    from trm.pipeline.settings import parse_overrides

    config: dict[str, Any] = {}
    for pair in args.config:
        key, sign, value = pair.partition("=")
        if not sign:
            raise UserError(f"--config {pair}: must be KEY=VALUE")
        config[key] = value
    given = {"study": args.study, "scale": args.scale}
    config |= {key: value for key, value in given.items() if value is not None}
    return open_project(config | {"set": parse_overrides(config.get("set")) | parse_overrides(args.set)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True)
    listing = commands.add_parser("list", help="every experiment of a study: points, runs, question")
    show = commands.add_parser("show", help="one experiment, resolved: its points, runs and their settings")
    show.add_argument("experiment", help="name of an experiment")
    compare = commands.add_parser("compare", help="two finished runs: settings, results, curves side by side")
    compare.add_argument(
        "runs", nargs=2, metavar="RUN", help="path, name, or a part of the name that only one run has"
    )
    compare.add_argument("--root", default="results/runs", help="folder of the runs (default: %(default)s)")
    for command in (listing, show):
        add_study_options(command)
    init = commands.add_parser("init", help="write a folder for a study of your own, ready to run")
    init.add_argument("folder", help="a new folder, or an empty one")
    launch = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run snakemake; removes stale locks first",
        description="Runs `snakemake` with all other arguments: profile, targets, -n, --config ... Example: "
        "bin/trm study run --profile profiles/local baseline",
    )
    add_set_option(launch)
    launch.add_argument(
        "--point", metavar="LABEL", help="train and evaluate only this point of the target experiments"
    )
    launch.set_defaults(arguments=[])  # whatever follows is handed to snakemake


def run(args: argparse.Namespace) -> int:
    return int(globals()[f"_{args.action}"](args))


def _init(args: argparse.Namespace) -> int:
    from importlib.util import find_spec
    from pathlib import Path

    from trm.cli import PIPELINE
    from trm.io import shipped
    from trm.pipeline.init import write_study

    write_study(Path(args.folder))
    if not find_spec("snakemake"):
        print(f"Snakemake is not installed: {PIPELINE}")
    checkout = shipped("bin/trm")
    trm = shlex.quote(str(checkout)) if checkout.exists() else "trm"
    print(
        f"{args.folder}: a study of your own in config/laptop.yaml (every key: config/README.md). Next:\n"
        f"  cd {shlex.quote(args.folder)}\n"
        f"  {trm} study list --study config/laptop.yaml   # its experiments\n"
        f"  {trm} study run --profile profiles/local -n   # what would run, and how long\n"
        f"  {trm} study run --profile profiles/local      # results/report.html"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    project = project_of(args)
    for name, experiment in project.study.experiments.items():
        size = f"{count(len(experiment.points), 'point')}, {count(len(experiment.runs), 'run')}"
        if experiment.skip:
            size = f"not run: {experiment.skip}"
        mark = "*" if name in project.selection.experiments else " "
        size += "".join(f"; {reason}" for reason in experiment.left_out)
        print(f"{mark} {name}: {size}\n      {experiment.definition.question}")
    print(f"\n* of {project.settings.study}: part of the report, or complete already")
    return 0


def _show(args: argparse.Namespace) -> int:
    import yaml

    from trm.pipeline.catalogue import dataset_name

    project = project_of(args)
    experiment = project.study.experiment(args.experiment)
    print(f"{experiment.name}: {experiment.definition.question}\n{experiment.definition.hypothesis}")
    for reason in (experiment.skip, *experiment.left_out):
        if reason:
            print(f"not run: {reason}")
    kinds = ", ".join(raw["kind"] for raw in experiment.definition.figures) or "none"
    print(f"points: {experiment.grid_at}\nfigures: {experiment.figures_at} ({kinds})")
    for point in experiment.points:
        print(f"\n{point.label}: {point.evaluation_file}")
        for key, value in point.coords.items():  # also where the value is the default
            print(f"  {key}: {value}")
        for run in point.runs:
            print(f"  {run.name}  data {dataset_name(run.config.data)}")
        differs = point.runs[0].config.model_dump(mode="json", exclude_defaults=True)
        print("  " + yaml.safe_dump(differs, sort_keys=False).rstrip().replace("\n", "\n  "))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from trm.results.compare import compare, find_run

    print(compare(*(find_run(name, args.root) for name in args.runs)))
    return 0


def _run(args: argparse.Namespace) -> int:
    from trm.launch.snakemake import launch, with_config

    return launch(with_config(args.arguments, args.set, args.point))
