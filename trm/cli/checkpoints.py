"""`python -m trm checkpoints list|clean|compact`: list, remove and compact checkpoints.

Checkpoints are only needed to resume; the results of a finished run are in results/runs. `clean` removes the
checkpoints of finished runs, and with --unknown also those of runs that the study no longer uses and that nobody
has written to for an hour. Both work on a bucket: `--config storage_prefix=gs://bucket/prefix`. `compact` writes a
run's newest checkpoint in about 10 bytes a parameter (moments in bfloat16, no batch slots); `trm train
--checkpoints` resumes from it.
"""

import argparse

REMOTE = ("root",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="every run's checkpoints: bytes and state")
    clean = actions.add_parser("clean", help="remove checkpoints of finished runs (--dry-run lists them)")
    compact = actions.add_parser("compact", help="a run's newest checkpoint in a compact form")
    compact.add_argument("folder", help="the run's folder below results/checkpoints")
    compact.add_argument("--to", required=True, help="new folder, to be given to `trm train --checkpoints`")
    compact.add_argument(
        "--part-mb", type=float, default=64.0, help="largest file in MiB (default: %(default)s)"
    )
    for action in (listing, clean):
        add_study_options(action)
        action.add_argument(
            "--root",
            help="results folder, or gs://bucket/prefix/results (default: that of storage_prefix, or results)",
        )
    clean.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    clean.add_argument("--unknown", action="store_true", help="also those of runs that no experiment uses")


def run(args: argparse.Namespace) -> int:
    if args.action == "compact":
        return _compact(args)
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


def _compact(args: argparse.Namespace) -> int:
    from pathlib import Path

    from trm.training.checkpoints.export import export
    from trm.training.checkpoints.folder import CheckpointFolder

    step, size = export(CheckpointFolder(Path(args.folder)), CheckpointFolder(Path(args.to)), args.part_mb)
    print(f"step {step} in compact form: {size / 1e6:.1f} MB in {args.to}")
    return 0
