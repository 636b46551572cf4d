"""Try everything once on a small new TPU slice, and write one file to send.

It says first what it will cost, and asks; profiles/tpu/first-hour.yaml says what runs.
"""

import argparse
import os
import sys
from pathlib import Path

from trm.pipeline.cloud import cloud_settings
from trm.pipeline.first_hour import FirstHour


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", type=Path, default=Path("profiles/tpu"), help="folder of a Snakemake profile"
    )
    parser.add_argument("--out", type=Path, default=Path("first-hour.json"), help="the file to send")
    parser.add_argument("--yes", action="store_true", help="start without asking")


def run(args: argparse.Namespace) -> int:
    name = os.environ.get("SNAKEMAKE_TPU_NAME") or cloud_settings()["pod"]
    hour = FirstHour(args.profile, name, lambda sentence: print(sentence, flush=True))
    print(hour.announce())
    if not args.yes and (not sys.stdin.isatty() or input("Start? [y/N] ").strip().lower() != "y"):
        print("Nothing was created. With --yes it starts without asking.")
        return 1
    return 0 if hour.run(args.out) else 1
