"""`python -m trm results archive|collect|keep|verify`: copy results, copy tables out of them, check every file.

python -m trm results archive gs://my-bucket/trm-2026 --dry-run
python -m trm results collect gs://my-bucket/trm
python -m trm results keep docs/results
python -m trm results verify

Only files that differ are copied; nothing is ever deleted. `verify` compares every file with its name, its checksum
and the files that it was made from, also in a tree that was collected; and figures and report with what the study that
--study names asks for (default: the study of the report that is there).
"""

import argparse
from pathlib import Path
from typing import Any

REMOTE = ("place",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    actions = parser.add_subparsers(dest="action", required=True)
    archive = actions.add_parser("archive", help="copy results to gs://bucket/prefix or another folder")
    collect = actions.add_parser("collect", help="copy results from gs://bucket/prefix or another folder")
    for action in (archive, collect):
        action.add_argument("place", help="gs://bucket/prefix or a folder; it holds results/...")
        action.add_argument("--root", default="results", help="results folder here (default: %(default)s)")
        action.add_argument("--run", action="append", metavar="RUN", help="only this run (may be repeated)")
        action.add_argument("--data", action="store_true", help="pools and data sets too")
        action.add_argument("--checkpoints", action="store_true", help="checkpoints too")
        action.add_argument("--dry-run", action="store_true", help="only list what would be copied")
    keep = actions.add_parser("keep", help="copy tables (CSV) and their figures' specs to a folder")
    keep.add_argument("out", help="folder")
    keep.add_argument("experiments", nargs="*", help="names (default: all that are built)")
    keep.add_argument(
        "--dirty",
        action="store_true",
        help="also of runs whose code had local changes; their commits end in +",
    )
    add_study_options(keep)
    check = actions.add_parser("verify", help="compare every file with its name, checksum and origin")
    check.add_argument("root", nargs="?", default="results", help="results folder (default: %(default)s)")
    add_study_options(check)


def run(args: argparse.Namespace) -> int:
    if args.action == "verify":
        return _verify(args)
    if args.action == "keep":
        return _keep(args)
    from trm.results.archive import RESULTS, differing, links_out, open_place, send
    from trm.study.text import bytes_text, count

    here, there = open_place(args.root), open_place(args.place)
    source, target = (here, there) if args.action == "archive" else (there, here)
    folders = RESULTS + ("sources", "datasets") * args.data + ("checkpoints",) * args.checkpoints
    files, equal = differing(source, target, folders, set(args.run) if args.run else None)
    for name in links_out(source, folders):
        print(f"left out: {source.url(name)} is a link out of {source.uri}")
    if not args.dry_run:
        send(source, target, files)
    verb = "would copy" if args.dry_run else "copied"
    size = bytes_text(sum(file.size for file in files))
    if args.dry_run:
        for file in files:
            print(f"{bytes_text(file.size):>10}  {file.name}")
    copied = f"{verb} {count(len(files), 'file')}, {size}"
    print(f"{copied}, from {source.uri} to {target.uri}; {equal} were there already")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from trm.errors import UserError
    from trm.results.verify import verify
    from trm.study.text import count

    root = args.root
    wanted = None
    try:
        wanted = _study_of(args).fixed
    except UserError as error:
        print(f"figures and report are not compared with a study: {error}")
    found = verify(Path(root), wanted)
    for problem in found.problems:
        print(problem)
    if found.unproven:
        print(f"without checksums, from an earlier version: {', '.join(found.unproven)}")
    checked = ", ".join(count(number, kind) for kind, number in found.counts.items() if number)
    match = "all checksums match, which shows that nothing is damaged, not who wrote it"
    verdict = "no problem found" if found.unproven else match
    verdict = count(len(found.problems), "problem") if found.problems else verdict
    print(f"{root}: {checked}; {verdict}")
    return 1 if found.problems else 0


def _study_of(args: argparse.Namespace) -> Any:
    """The study that the options name; without them the one that the report here was made for."""
    import shlex

    from trm.cli.study import add_study_options, project_of
    from trm.io import read_json

    if args.study or args.scale or args.set or args.config:
        return project_of(args)
    stamp = read_json(Path(args.root, "report.json"))
    options = argparse.ArgumentParser()
    add_study_options(options)
    return project_of(options.parse_args(shlex.split(str(stamp.get("options", "")))))


def _keep(args: argparse.Namespace) -> int:
    from trm.cli.study import project_of
    from trm.errors import UserError
    from trm.results.archive import keep

    project = project_of(args)
    names = [project.study.experiment(name).name for name in args.experiments]
    tables = {name: project.catalogue.table_file(name) for name in names or project.selection.experiments}
    if not names:
        tables = {name: path for name, path in tables.items() if Path(path).exists()}
    if not tables:
        raise UserError("no table is built yet: run the study first (`make report`)")
    scale = project.study.scale_name
    specs: dict[str, dict[str, Any]] = {name: {} for name in tables}
    for name in tables:
        for figure in project.catalogue.figures_of(name):
            if figure.experiments == (name,):
                spec = figure.spec.model_dump(mode="json", exclude_defaults=True) | {"kind": figure.spec.kind}
                specs[name][f"{figure.stem}_{scale}"] = spec
    for path in keep(tables, specs, args.out, scale, args.dirty):
        print(path)
    return 0
