"""`python -m trm preflight`: check a machine, or all hosts of a job, before trusting it with a run.

python -m trm preflight
torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 8 -m trm preflight --profile gpu --bucket gs://my-bucket/trm
tpurun python -m trm preflight --profile tpu --bucket gs://my-bucket/trm --out results/preflight.json
"""

import argparse

REMOTE = ("bucket",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        default="local",
        choices=("local", "gpu", "tpu"),
        help="target of the checks (default: local)",
    )
    parser.add_argument("--bucket", help="address in a bucket that results will go to")
    parser.add_argument(
        "--scratch", help="folder where checkpoints will be written (default: as `trm train` chooses it)"
    )
    parser.add_argument("--devices", type=int, help="required number of devices")
    parser.add_argument("--memory-gib", type=float, default=4.0, help="required host memory")
    parser.add_argument("--disk-gib", type=float, default=5.0, help="required free disk space")
    parser.add_argument("--out", help="write the rows as JSON to this file if all are green")


def run(args: argparse.Namespace) -> int:
    """Print the table; 0 if all rows are green, else 1."""
    import sys
    from pathlib import Path

    from trm.checks.preflight.report import Site, run_checks, table
    from trm.checks.preflight.work import CHECKS
    from trm.storage.cache import default_folder

    scratch = args.scratch or (default_folder() if args.bucket else "results")
    site = Site(
        args.profile,
        Path(scratch),
        bucket=args.bucket,
        devices=args.devices,
        memory_gib=args.memory_gib,
        disk_gib=args.disk_gib,
    )
    try:
        rows = run_checks(site, CHECKS)
        first = site.backend is None or site.backend.rank == 0
        if first:
            print(table(rows, sys.stdout.isatty()))
        good = all(row.green for row in rows)
        if good and first and args.out:
            from trm.io import write_json

            write_json(Path(args.out), {"profile": args.profile, "rows": [row._asdict() for row in rows]})
        return 0 if good else 1
    finally:
        if site.backend is not None:
            site.backend.close()
