"""Counts steps like a training run: writes checkpoints to a bucket, resumes, reports progress, stops on SIGTERM."""

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAUNCH = os.environ["TPU_LAUNCH"]
MARK = f"{LAUNCH} {os.urandom(8).hex()}"  # each slice of a pool counts its own launches
AGENT = Path(os.environ["TPU_AGENT"])  # the hosts' code, which has a client of Cloud Storage
SEEN = ("HOME", "TPU_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "COUNT_OPTION")

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--seconds", type=float)
for name in ("checkpoint", "seed", "out"):
    parser.add_argument(f"--{name}")
parser.add_argument("--hold", type=int, help="in launch 1, wait at this step for the object `release`")
parser.add_argument("--stubborn", action="store_true")
args = parser.parse_args()

sys.path.insert(0, str(AGENT.parent))
client = importlib.import_module(f"{AGENT.name}.worker.bucket")
client.MOST_PAUSE = 1.0
stopping = threading.Event()
bucket = client.Bucket(args.checkpoint, patience=1e9, stop=stopping)
signal.signal(signal.SIGTERM, signal.SIG_IGN if args.stubborn else lambda *_: stopping.set())


def patiently(call, *arguments):
    """Call the bucket again while it refuses, as a training goes on whose checkpoint was refused."""
    while True:
        try:
            return call(*arguments)
        except client.Refused:
            if stopping.wait(0.5):
                sys.exit(143)


def put(name, text):
    patiently(bucket.put, name, str(text).encode())


def get(name):
    found = patiently(bucket.get, name)
    return found and found.data.decode()


def count():
    # All ranks start where rank 0 does, as with a collective.
    if RANK == 0:
        put(f"begin-{LAUNCH}", get("step") or 0)
    while (begin := get(f"begin-{LAUNCH}")) is None and not stopping.is_set():
        time.sleep(0.05)
    step = int(begin or 0)
    seen = {key: value for key, value in os.environ.items() if key.startswith(SEEN)}
    put(f"launches/{LAUNCH}-{RANK}", json.dumps({"from": step, "environment": seen}))
    print(f"launch {LAUNCH}, rank {RANK} of {SIZE}: from step {step}", flush=True)
    if RANK == 0:
        put("owner", MARK)
    while step < args.steps:
        time.sleep(args.seconds)
        step += 1
        if RANK == 0:
            # No fault may cause two launches of one job at the same time.
            if (owner := get("owner")) != MARK:
                put(f"duplicates/{LAUNCH}", owner)
                sys.exit("another launch runs beside this one")
            put("step", step)
            Path(os.environ["TPU_PROGRESS_FILE"]).write_text(str(step))
        print(f"step {step}", flush=True)
        while args.hold == step and LAUNCH == "1" and not stopping.is_set() and get("release") is None:
            time.sleep(0.05)
        if stopping.is_set():
            sys.exit(143)
    if RANK == 0:
        job, seed = args.checkpoint.rpartition("/")[2], Path(args.seed).read_text().strip()
        Path(args.out).write_text(f"{job} counted to {step} with seed {seed} on {SIZE}\n")


with contextlib.suppress(FileNotFoundError), open(Path.home() / "bad", "r+b") as bad:  # the fault "bad host"
    bad.seek(0, os.SEEK_END)
    bad.write(b"!")
    sys.exit("RuntimeError: TPU core halted")
try:
    count()
except client.Offline:  # once it has been told to stop
    sys.exit(143)
