"""`python -m trm data`: build, inspect and fetch puzzles and data sets.

    python -m trm data source  --config run.json --out results/sources/a
    python -m trm data build   --config run.json --source results/sources/a --out results/datasets/b
    python -m trm train        --config run.json --dataset results/datasets/b --out results/runs/c --checkpoints c
    python -m trm data inspect results/datasets/b
    python -m trm data checksum gs://my-bucket/puzzles.csv
    python -m trm data fetch --scale gpu baseline    (before a study whose compute nodes have no internet)
    python -m trm data fetch --from 17_clue --out 17_clue.csv      (or an address of puzzles, one a line)
    python -m trm data tasks --count 40 --side 6 --out generated_challenges.json

A config is the RunConfig that `trm train` takes, or its `data` section alone (docs/data.md): JSON text, or the path of
a JSON file. `--set data.pool=4000` changes a value.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trm.study.schema import DataConfig

REMOTE = ("files",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.configuration import add_options
    from trm.cli.study import add_study_options

    actions = parser.add_subparsers(dest="action", required=True)
    source = actions.add_parser("source", help="generate, read or download a pool of puzzles")
    build = actions.add_parser("build", help="cut a data set (train, validation, test) from a pool")
    inspect = actions.add_parser("inspect", help="print identity, counts and difficulty; draw samples")
    checksum = actions.add_parser(
        "checksum", help="print files of a bucket with their SHA-256, in the form that `--config` expects"
    )
    checksum.add_argument("files", nargs="+", metavar="URI", help="gs://bucket/file")
    tasks = actions.add_parser("tasks", help="write ARC tasks of a few families, as additional training data")
    tasks.add_argument("--count", type=int, default=40, help="tasks (default: %(default)s)")
    tasks.add_argument("--pairs", type=int, default=10, help="pairs of each task (default: %(default)s)")
    tasks.add_argument(
        "--side", type=int, default=6, help="of the canvas: rows and columns (default: %(default)s)"
    )
    tasks.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    tasks.add_argument("--families", default="", help="comma-separated (default: all)")
    tasks.add_argument("--out", required=True, type=Path, help="JSON file to write")
    fetch = actions.add_parser("fetch", help="download what a study reads from the network, on this machine")
    add_study_options(fetch)
    fetch.add_argument("experiments", nargs="*", help="(default: those of `make report` at the scale)")
    fetch.add_argument(
        "--from",
        dest="address",
        help="instead, a public collection: 17_clue, forum_hardest_1905_11+ or an address",
    )
    fetch.add_argument("--sha256", default="", help="of the file at that address")
    fetch.add_argument(
        "--member", default="", help="of a zip archive at that address: the end of a file's name"
    )
    fetch.add_argument("--out", type=Path, help="CSV file to write the collection to")
    for command in (source, build):
        add_options(command)
        command.add_argument(
            "--files", default="", help="comma-separated input files, in place of the config's `files`"
        )
    build.add_argument("--source", required=True, type=Path, help="folder of the pool")
    for command in (source, build):
        command.add_argument("--out", required=True, type=Path, help="folder to write")
    inspect.add_argument("directory", type=Path, help="folder of a data set or a pool")
    inspect.add_argument(
        "--samples", type=int, default=2, help="puzzles drawn of each split (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    return int(globals()[f"_{args.action}"](args))


def _source(args: argparse.Namespace) -> int:
    from trm.tasks.build import build_source

    pool = build_source(_config(args), args.out)
    text = f"{args.out}: {pool.puzzles:,} puzzles in {pool.report['classes']:,} classes"
    if "read" in pool.report and (removed := pool.report["equivalent_removed"]):
        text += f"; {removed:,} of {pool.report['read']:,} read were left out: a symmetry makes them equal to others"
    if "test_tasks" in pool.report:
        text += "; {training_tasks:,} tasks for training, {test_tasks:,} for tests".format(**pool.report)
    print(text)
    return 0


def _build(args: argparse.Namespace) -> int:
    from trm.tasks.build import build_dataset

    manifest = build_dataset(_config(args), args.source, args.out)
    counts = ", ".join(f"{name} {found['puzzles']:,}" for name, found in manifest["counts"].items())
    print(f"{args.out}: {counts} puzzles; {manifest['augmentations']} copies of each for training")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from trm.tasks.inspect import describe

    print(describe(args.directory, args.samples))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    if args.address:
        return _collection(args)
    from trm.cli.study import project_of
    from trm.pipeline.catalogue import source_name
    from trm.tasks.build import build_source, downloads

    project = project_of(args)
    names = args.experiments or project.selection.experiments
    points = [point for name in names for point in project.study.experiment(name).points]
    pools = {source_name(run.config.data): run.config.data for point in points for run in point.runs}
    for name, data in pools.items():
        manifest, _ = project.catalogue.source_files(name)
        if downloads(data) and not project.files.exists(manifest):
            pool = build_source(data, Path(manifest).parent)
            print(f"{Path(manifest).parent}: {pool.puzzles:,} puzzles", flush=True)
    print("Everything that comes from the network is here.")
    return 0


def _collection(args: argparse.Namespace) -> int:
    from trm.errors import UserError
    from trm.tasks.sudoku.collections import COLLECTIONS, Collection, fetch

    known = COLLECTIONS.get(args.address)
    if not known and "://" not in args.address:
        raise UserError(
            f"--from {args.address}: give one of {', '.join(COLLECTIONS)}, or an address (https://...)"
        )
    if not args.out:
        raise UserError("--out is missing: give the CSV file to write")
    name = args.address if known else args.out.stem
    print(fetch(name, known or Collection(args.address, args.sha256, args.member), args.out))
    return 0


def _checksum(args: argparse.Namespace) -> int:
    from trm.tasks.build import checksum

    print(",".join(f"{file}#sha256={checksum(file)}" for file in args.files))
    return 0


def _tasks(args: argparse.Namespace) -> int:
    from trm.io import write_json
    from trm.tasks.arc.generate import FAMILIES, tasks

    families = tuple(args.families.split(",")) if args.families else tuple(FAMILIES)
    found = tasks(args.count, args.side, args.seed, families, args.pairs)
    write_json(args.out, found, indent=None)
    print(f"{args.out}: {len(found):,} tasks of {', '.join(families)}")
    return 0


def _config(args: argparse.Namespace) -> DataConfig:
    from trm.cli.configuration import run_config

    return run_config(args.config, args.changes, args.files).data
