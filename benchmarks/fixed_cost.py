"""What a small run costs before it learns anything: `trm train` of one step, and `trm evaluate`.

    python -m benchmarks.fixed_cost [--rounds 5] [--json fixed_cost.json]

Each round starts, in turns, `python -c "import torch"` (the baseline: no run can be shorter), the training command of
the pipeline for one step of a laptop model, which evaluates it too, and the evaluation command, which takes that over,
each a process of its own on one thread. The fixed cost is `run`: both together, imports, set-up, first step,
evaluation and files. Wall and processor seconds. The first round, which fills the caches (Python's, numba's), is
reported apart as `cold`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trm.provenance import provenance

ALLOWED = 4.0
"""Target: seconds of a run, training and evaluation together."""
DATA = {
    "source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8,
    "train_puzzles": 300, "augmentations": 16, "validation_puzzles": 100, "test_puzzles": 400,
}  # fmt: skip
MODEL = {"d_model": 32, "heads": 4, "h_cycles": 2, "l_cycles": 2, "puzzle_tokens": 1, "halt_max_steps": 8}
TRAINING = {"batch_size": 128, "steps": 1, "ema": 0.99, "precision": "auto"}
ROOT = Path(__file__).parents[1]


def timed(command: list[str]) -> dict[str, float]:
    """Wall and processor seconds of one command; its output is shown if it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "processor": processor}


def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """By command: medians of the warm rounds, their range, and the cold round."""
    trm = [sys.executable, "-m", "trm"]
    pool = json.dumps(DATA)
    source = str(folder / "source")
    timed([*trm, "data", "source", "--config", pool, "--out", source])
    timed([*trm, "data", "build", "--config", pool, "--source", source, "--out", str(folder / "data")])
    run = json.dumps({"data": DATA, "model": MODEL, "training": TRAINING})
    taken: dict[str, list[dict[str, float]]] = {"import torch": [], "train": [], "evaluate": []}
    for round_ in range(rounds + 1):
        place = folder / str(round_)
        kept = str(place / "kept")
        out = ["--dataset", str(folder / "data"), "--threads", "1", "--out"]
        commands = {
            "import torch": [sys.executable, "-c", "import torch"],
            "train": [
                *trm, "train", "--config", run, *out, str(place / "run"), "--checkpoints", kept,
                "--evaluations", "[{}]",
            ],
            "evaluate": [
                *trm, "evaluate", "--run", str(place / "run"), *out, str(place / "evaluation.json"), "--ahead", kept,
            ],
        }  # fmt: skip
        for name, command in commands.items():
            taken[name].append(timed(command))
        print(f"round {round_} of {rounds} done", file=sys.stderr, flush=True)
    taken["run"] = [
        {key: a[key] + b[key] for key in a} for a, b in zip(taken["train"], taken["evaluate"], strict=True)
    ]
    found = {}
    for name, times in taken.items():
        walls = [t["wall"] for t in times[1:]]
        found[name] = {
            "wall": statistics.median(walls),
            "wall_least": min(walls),
            "wall_most": max(walls),
            "processor": statistics.median(t["processor"] for t in times[1:]),
            "cold": times[0]["wall"],
        }
    return found


def main() -> None:
    """Print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.rounds)
    print(f"{'':<14}{'wall s':>8}{'least':>8}{'most':>8}{'processor s':>13}{'cold':>8}")
    for name, row in found.items():
        print(
            f"{name:<14}{row['wall']:>8.2f}{row['wall_least']:>8.2f}{row['wall_most']:>8.2f}"
            f"{row['processor']:>13.2f}{row['cold']:>8.2f}"
        )
    if args.json:
        args.json.write_text(
            json.dumps({"allowed": ALLOWED, "commands": found, "provenance": provenance()}, indent=1)
        )


if __name__ == "__main__":
    main()
