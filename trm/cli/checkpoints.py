"""`python -m trm checkpoints list|clean`: list and remove checkpoints.

Checkpoints are only needed to resume; the results of a finished run are in results/runs. `clean` removes the
checkpoints of finished runs, and with --unknown also those of runs that the study no longer uses and that nobody
has written to for an hour. Both work on a bucket: `--config storage_prefix=gs://bucket/prefix`.
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
    from trm.pipeline.cleanup import clean, survey
    from trm.study.text import bytes_text, count

    project = project_of(args)
    prefix = project.place.prefix
    root = args.root or (f"{prefix}/results" if prefix else "results")
    entries = survey(root, set(project.runs))
    if args.action == "list":
        for entry in entries:
            print(f"{entry.state:<11}{bytes_text(entry.size):>10}  {entry.run}")
        print(f"{count(len(entries), 'run')}, {bytes_text(sum(entry.size for entry in entries))}")
        return 0
    removed = clean(root, entries, args.unknown, args.dry_run)
    verb = "would free" if args.dry_run else "freed"
    for entry in removed:
        print(f"{entry.state:<11}{bytes_text(entry.size):>10}  {entry.run}")
    print(f"{verb} {bytes_text(sum(entry.size for entry in removed))} of {count(len(removed), 'run')}")
    return 0
