"""Faults of the training engine in full size, each by really doing it, and what they cost.

    python -m benchmarks.faults [--kills 20] [--seed 1] [--outage 60] [--only kills,sigterm,outage]

kills: `trm train` processes are sent SIGKILL at random moments of their first seconds; the run ends with the weights of
one that nothing disturbed. sigterm: a run of the paper's size is asked to stop in the middle of a step while its bucket
does not answer; seconds until the checkpoint lies on the local disk. outage: the bucket of a run is away for a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.storage.cloud import Server
from tests.training.puzzles import write_dataset
from trm.training.checkpoints.folder import CheckpointFolder

SMALL = {
    "model": {"d_model": 16, "h_cycles": 2, "l_cycles": 1, "halt_max_steps": 4, "puzzle_tokens": 1},
    "data": {"source": "generate", "augmentations": 0, "box_rows": 2, "box_cols": 2, "clues_max": 8},
    "training": {"batch_size": 16, "steps": 300, "warmup_steps": 4, "lr": 1e-3, "precision": "float32"},
}
LARGE = {  # the paper's MLP model; a step of 128 rows takes this machine's core many seconds
    **SMALL,
    "model": {"d_model": 512, "h_cycles": 3, "l_cycles": 6, "puzzle_tokens": 16},
    "training": {**SMALL["training"], "batch_size": 128, "steps": 1000},
}
RUNTIME = {"log_every": 10, "evals": 2, "checkpoint_minutes": 1e-6}


class Bench:
    """Runs `trm train` on a small data set below `root`."""

    def __init__(self, root: Path):
        self.root = root
        self.data = write_dataset(root / "data", 120, 24, 40)

    def start(
        self, name: str, config: dict[str, Any], checkpoints: str = "", **runtime: Any
    ) -> subprocess.Popen:
        """A training process of the run `name`."""
        places = ["--dataset", str(self.data), "--out", str(self.root / name / "run")]
        places += ["--checkpoints", checkpoints or str(self.root / name / "checkpoints")]
        settings = ["--config", json.dumps(config), "--runtime", json.dumps(RUNTIME | runtime)]
        command = [sys.executable, "-u", "-m", "trm", "train", "--backend", "cpu", "--threads", "1"]
        environment = os.environ | {"TRM_CACHE": str(self.root / name / "cache"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [*command, *places, *settings],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def weights(self, name: str) -> dict[str, np.ndarray]:
        """What the run left."""
        return load_file(self.root / name / "run/weights.safetensors")

    def same(self, one: str, other: str) -> bool:
        """Whether two runs ended with the same weights, to the bit."""
        ours, theirs = self.weights(one), self.weights(other)
        return ours.keys() == theirs.keys() and all((ours[key] == theirs[key]).all() for key in ours)


def finish(job: subprocess.Popen) -> str:
    """What the job said; raises where it failed."""
    said = job.communicate()[0]
    if job.returncode:
        raise RuntimeError(f"exit code {job.returncode}: {said[-500:]}")
    return said


def kills(bench: Bench, count: int, seed: int) -> dict[str, Any]:
    """SIGKILL from outside, at random moments from the start of the process on: while it starts, or in its share of
    the steps, so that the run lasts for all the kills."""
    started = time.monotonic()
    job = bench.start("whole", SMALL)
    assert job.stdout is not None
    for line in job.stdout:
        if "step 10/" in line:
            break
    start = time.monotonic() - started
    finish(job)
    whole = time.monotonic() - started
    latest = start + 2 * (whole - start) / count
    generator, done, runs = random.Random(seed), 0, 0
    begun = time.monotonic()
    while done < count:
        job = bench.start(f"killed{runs}", SMALL)
        try:
            said = job.communicate(timeout=generator.uniform(0, latest))[0]
        except subprocess.TimeoutExpired:
            job.kill()
            job.communicate()
            done += 1
        else:  # finished before its moment: the other kills meet a new run
            if job.returncode:
                raise RuntimeError(f"exit code {job.returncode}: {said[-500:]}")
            runs += 1
    finish(bench.start(f"killed{runs}", SMALL))
    names = [f"killed{number}" for number in range(runs + 1)]
    records = [json.loads((bench.root / name / "run/training.json").read_text()) for name in names]
    return {
        "kills": done,
        "runs that they met": len(names),
        "kills after which the run went on from a checkpoint": sum(record["resumes"] for record in records),
        "same weights": all(bench.same("whole", name) for name in names),
        "seconds": time.monotonic() - begun,
        "seconds undisturbed": whole,
        "of these until its first steps": start,
    }


def sigterm(bench: Bench) -> dict[str, Any]:
    """SIGTERM in the middle of a long step, with a bucket that has just gone away."""
    server = Server(bench.root / "objects")
    server.start()
    server.make_bucket("runs")
    os.environ |= {"STORAGE_EMULATOR_HOST": server.url, "TRM_STORAGE_MINUTES": "0.2"}
    try:
        job = bench.start("large", LARGE, "gs://runs/large", log_every=1, checkpoint_minutes=600)
        assert job.stdout is not None
        for line in job.stdout:
            if "step 1/" in line:
                break
        server.kill()
        time.sleep(2)  # into the next step
        begun = time.monotonic()
        job.send_signal(signal.SIGTERM)
        said = ""
        for line in job.stdout:
            said += line
            if "stopped at step" in line:
                saved = time.monotonic() - begun
        job.wait()
        ended = time.monotonic() - begun
        (local,) = (bench.root / "large/cache/checkpoints").glob("large-*")
        newest = CheckpointFolder(local)
        size = sum(path.stat().st_size for path in newest.folder(newest.steps()[-1]).iterdir())
        return {"exit code": job.returncode, "step": newest.steps()[-1], "megabytes": size / 1e6} | {
            "seconds to the checkpoint on the local disk": saved,
            "seconds to the end (bucket given up after 0.2 minutes)": ended,
        }
    finally:
        server.kill()


def outage(bench: Bench, seconds: float) -> dict[str, Any]:
    """The bucket becomes unreachable in the middle of a run and returns after `seconds`."""
    server = Server(bench.root / "objects2")
    server.start()
    server.make_bucket("runs")
    os.environ |= {"STORAGE_EMULATOR_HOST": server.url, "TRM_STORAGE_MINUTES": "10"}
    if not (bench.root / "whole").exists():
        finish(bench.start("whole", SMALL))
    begun = time.monotonic()
    job = bench.start("away", SMALL, "gs://runs/away")
    assert job.stdout is not None
    for line in job.stdout:
        if "step 20/" in line:
            break
    server.kill()
    gone = time.monotonic()
    back = threading.Timer(seconds, server.start)
    back.start()
    trained = None
    for line in job.stdout:
        if "100 %" in line:
            trained = time.monotonic() - gone
    job.wait()
    back.join()
    try:
        return {
            "exit code": job.returncode,
            "outage seconds": seconds,
            "last step after the bucket went (s)": trained,
            "end after the bucket went (s)": time.monotonic() - gone,
            "same weights": bench.same("whole", "away"),
            "seconds": time.monotonic() - begun,
        }
    finally:
        server.kill()


def main() -> int:
    """Run the faults and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outage", type=float, default=60.0, help="seconds (default: %(default)s)")
    parser.add_argument("--only", default="kills,sigterm,outage", help="comma-separated (default: all)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="trm-faults-") as folder:
        bench = Bench(Path(folder))
        todo = {
            "kills": lambda: kills(bench, args.kills, args.seed),
            "sigterm": lambda: sigterm(bench),
            "outage": lambda: outage(bench, args.outage),
        }
        for name in args.only.split(","):
            found[name] = todo[name]()
            print(name)
            for key, value in found[name].items():
                text = f"{value:.1f}" if isinstance(value, float) else value
                print(f"  {key:55} {text}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [name for name, row in found.items() if row.get("same weights") is False]
    return 1 if wrong or found.get("sigterm", {"exit code": 143})["exit code"] != 143 else 0


if __name__ == "__main__":
    sys.exit(main())
