"""`python -m trm checkpoints list|clean`: list and remove checkpoints.

Checkpoints, and the parts that an evaluation keeps beside them, are only needed to resume; results are in
results/runs. `clean` removes those of finished runs and evaluations, and with --unknown also those that the study no
longer uses and that nobody has written to for an hour. Both work on a bucket: `--config storage_prefix=gs://bucket/prefix`.
"""

import argparse

REMOTE = ("root",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="every run's checkpoints: bytes and state")
    clean = actions.add_parser("clean", help="remove checkpoints of finished runs (--dry-run lists them)")
    for action in (listing, clean):
        add_study_options(action)
        action.add_argument(
            "--root",
            help="results folder, or gs://bucket/prefix/results (default: that of storage_prefix, or results)",
        )
    clean.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    clean.add_argument("--unknown", action="store_true", help="also those of runs that no experiment uses")


def run(args: argparse.Namespace) -> int:
    from trm.cli.study import project_of
    from trm.results.cleanup import clean, find_entries
    from trm.study.text import bytes_text, count

    project = project_of(args)
    prefix = project.files.prefix
    root = args.root or (f"{prefix}/results" if prefix else "results")
    known = {name.removesuffix(".json") for name in (*project.runs, *project.study.evaluations)}
    entries, verb = find_entries(root, known), ""
    if args.action == "clean":
        entries = clean(root, entries, args.unknown, args.dry_run)
        verb = "would free " if args.dry_run else "freed "
    for entry in entries:
        print(f"{entry.state:<11}{bytes_text(entry.size):>10}  {entry.name}")
    runs = count(len({entry.name.partition("/")[0] for entry in entries}), "run")
    print(f"{verb}{bytes_text(sum(entry.size for entry in entries))} of {runs}")
    return 0
