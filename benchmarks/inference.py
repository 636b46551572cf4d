"""What stopping on the halt logit saves: a full pass against a compacted one, in seconds and steps.

python -m benchmarks.inference --run results/runs/NAME --dataset results/datasets/NAME [--rounds 5] [--json out.json]

The answers of a compacted pass are compared, puzzle by puzzle, with those of the full pass at the same step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.frame import finish, in_turns, parser
from trm.backends.cpu.device import CpuBackend
from trm.evaluation import policies
from trm.evaluation.evaluate import Evaluation
from trm.study.schema import EvaluationConfig
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights

DEPTHS = (8, 16, 64)
COMPARED = 16
"""Deepest pass whose answers are compared: each step at which a puzzle may stop needs a full pass."""


def measure(run: Path, dataset: Path, depth: int, rounds: int) -> dict[str, Any]:
    """Both passes at one depth, in turns: median seconds, and whether their answers are equal."""
    backend = CpuBackend()
    evaluation = Evaluation(load_weights(run), Dataset(dataset), EvaluationConfig(), backend)
    puzzles = evaluation.dataset.originals("test", backend)

    def full(steps: int) -> policies.FixedResult:
        return policies.fixed(evaluation.net, puzzles, (steps,), evaluation._score, lambda: None)

    def compacted() -> tuple[policies.Timed, torch.Tensor]:
        score = evaluation._score()
        return policies.confident(evaluation.net, puzzles, depth, score, backend.synchronize)

    calls = {"ours": compacted, "full": lambda: full(depth)}
    taken = in_turns(calls, rounds, backend)
    whole, (timed, answers) = full(depth), compacted()
    last = torch.where(whole.first_positive == 0, depth, whole.first_positive)
    expected = torch.zeros_like(answers)
    for step in last.unique().tolist() if depth <= COMPARED else ():
        expected[last == step] = full(step).answers[last == step]
    score = timed.score.result(backend.total)
    return {
        "depth": depth,
        "full": taken["full"]["seconds"],
        "compacted": taken["ours"]["seconds"],
        "time_saved": taken["full"]["ratio"],
        "steps_saved": depth / score["mean_steps"],
        "different_answers": int((expected != answers).any(1).sum()) if depth <= COMPARED else None,
        "puzzles": len(answers),
        "exact_full": whole.depths[depth].score.result(backend.total)["exact_accuracy"],
        "exact_compacted": score["exact_accuracy"],
    }


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--run", type=Path, required=True, help="folder of a finished training run")
    options.add_argument("--dataset", type=Path, required=True, help="its data set")
    args = options.parse_args()
    torch.set_num_threads(1)
    finish([measure(args.run, args.dataset, depth, args.rounds) for depth in DEPTHS], args.json)


if __name__ == "__main__":
    main()
