"""What stopping on the halt logit saves: a full pass against a compacted one, in seconds, steps and answers.

python -m benchmarks.inference [--run results/runs/NAME --dataset results/datasets/NAME] [--rounds 5] [--json out.json]

Without a run it trains the laptop scale's baseline first. Answers of a compacted pass are compared, puzzle by puzzle,
with those that the full pass gave at the same step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.plan import data
from trm.devices.cpu import CpuBackend
from trm.evaluation import policies
from trm.evaluation.evaluate import Evaluation
from trm.pipeline.naming import dataset_name
from trm.pipeline.project import open_project
from trm.study.schema import EvaluationConfig
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights

DEPTHS = (8, 16, 64)
COMPARED = 16
"""Deepest pass whose answers are compared: a full pass for each step at which a puzzle may stop."""


def train(folder: Path) -> tuple[Path, Path]:
    """The laptop scale's baseline: its run and its data set."""
    data(folder)
    project = open_project({"scale": "laptop", "experiments": "baseline"})
    run = project.study.experiment("baseline").points[0].runs[0]
    dataset, out = folder / dataset_name(run.config.data), folder / run.name
    command = [
        sys.executable,
        "-m",
        "trm",
        "train",
        "--config",
        project.catalogue.run_json(run.name),
        "--threads",
        "1",
    ]
    command += ["--dataset", str(dataset), "--out", str(out), "--checkpoints", str(folder / "checkpoints")]
    subprocess.run(command, check=True, capture_output=True)
    return out, dataset


def measure(run: Path, dataset: Path, depth: int, rounds: int) -> dict[str, Any]:
    """Median seconds of both ways at one depth, in turns; whether the answers are equal."""
    backend = CpuBackend()
    measured = Evaluation(load_weights(run), Dataset(dataset), EvaluationConfig(), backend)
    puzzles = measured.dataset.originals("test", backend)
    seconds: dict[str, list[float]] = {"full": [], "compacted": []}
    for _ in range(rounds):
        begun = time.perf_counter()
        full = policies.fixed(measured.net, puzzles, (depth,), measured._score, lambda: None)
        seconds["full"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        timed, answers = policies.confident(
            measured.net, puzzles, depth, measured._score(), measured.backend.synchronize
        )
        seconds["compacted"].append(time.perf_counter() - begun)
    last = torch.where(full.first_positive == 0, depth, full.first_positive)
    expected = torch.zeros_like(answers)
    for step in last.unique().tolist() if depth <= COMPARED else ():
        at_step = policies.fixed(measured.net, puzzles, (step,), measured._score, lambda: None).answers
        expected[last == step] = at_step[last == step]
    both = {key: statistics.median(values) for key, values in seconds.items()}
    return {
        "depth": depth,
        **both,
        "time_saved": both["full"] / both["compacted"],
        "steps_saved": depth / timed.score.result(backend)["mean_steps"],
        "different_answers": int((expected != answers).any(1).sum()) if depth <= COMPARED else None,
        "puzzles": len(answers),
        "exact_full": full.depths[depth].score.result(backend)["exact_accuracy"],
        "exact_compacted": timed.score.result(backend)["exact_accuracy"],
    }


def main() -> None:
    """Print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        run, dataset = (args.run, args.dataset) if args.run else train(Path(place))
        found = [measure(run, dataset, depth, args.rounds) for depth in DEPTHS]
    print(
        f"{'steps':>6}{'full s':>9}{'compacted s':>13}{'times faster':>14}{'fewer steps':>13}{'differ':>8}{'exact':>16}"
    )
    for row in found:
        exact = f"{100 * row['exact_full']:.1f} / {100 * row['exact_compacted']:.1f} %"
        print(
            f"{row['depth']:>6}{row['full']:>9.3f}{row['compacted']:>13.3f}{row['time_saved']:>14.2f}"
            f"{row['steps_saved']:>13.2f}{row['different_answers'] if row['depth'] <= COMPARED else '':>8}{exact:>16}"
        )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
