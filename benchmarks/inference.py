"""What stopping on the halt logit saves: a full pass against a compacted one, in seconds, steps and answers.

python -m benchmarks.inference --run results/runs/NAME --dataset results/datasets/NAME [--rounds 5] [--json out.json]

Answers of a compacted pass are compared, puzzle by puzzle, with those that the full pass gave at the same step.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.frame import finish, parser
from trm.devices.cpu import CpuBackend
from trm.evaluation import policies
from trm.evaluation.evaluate import Evaluation
from trm.study.schema import EvaluationConfig
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights

DEPTHS = (8, 16, 64)
COMPARED = 16
"""Deepest pass whose answers are compared: a full pass for each step at which a puzzle may stop."""


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
    """Measure, print, and write JSON if asked."""
    options = parser(__doc__, rounds=5)
    options.add_argument("--run", type=Path, required=True, help="folder of a finished training run")
    options.add_argument("--dataset", type=Path, required=True, help="its data set")
    args = options.parse_args()
    torch.set_num_threads(1)
    finish([measure(args.run, args.dataset, depth, args.rounds) for depth in DEPTHS], args.json)


if __name__ == "__main__":
    main()
