"""Accuracy per FLOP: the cheapest recipes known that solve 90 % of unseen puzzles, seed by seed.

    python -m benchmarks.accuracy [--cases 6x6 9x9] [--seeds 5] [--json accuracy.json]

Every seed trains by `trm train` and is tested on 1,000 puzzles of a pool that chose no recipe. `ratio`: the training
FLOPs of the laptop study's recipe over those of the recipe here, or 0 if its mean is below 90 % or a seed below 87 %.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.frame import TRM, finish, parser, timed
from trm.study.dataset_identity import shape
from trm.study.flops import train_flops
from trm.study.schema import RunConfig

LEAST_MEAN, LEAST = 0.90, 0.87
POOL = {"source": "generate", "test_puzzles": 1000, "seed": 2}
SMALL = {
    **POOL, "box_rows": 2, "box_cols": 3, "clues_min": 0, "clues_max": 0, "pool": 2400, "train_puzzles": 1000,
    "augmentations": 50, "validation_puzzles": 128,
}  # fmt: skip
LARGE = {
    **POOL, "box_rows": 3, "box_cols": 3, "clues_min": 30, "clues_max": 50, "pool": 32000, "train_puzzles": 30000,
    "augmentations": 0, "validation_puzzles": 256,
}  # fmt: skip
MODEL = {"layers": 1, "h_cycles": 1, "l_cycles": 3, "puzzle_tokens": 1, "expansion": 1.0, "multiple": 8}
TRAINING = {
    "puzzle_weight_decay": 0.1,
    "weight_decay": 0.2,
    "optimizer": "muon",
    "beta1": 0.8,
    "precision": "auto",
}
CASES: dict[str, tuple[int, float, dict[str, Any]]] = {
    "6x6": (32, 0.793e12, {
        "data": SMALL | {"curriculum": [{"until": 0.4, "hints": [0, 4]}]},
        "model": MODEL | {"d_model": 32, "halt_max_steps": 3},
        "training": TRAINING | {"batch_size": 32, "steps": 516, "lr": 0.06, "lr_min_ratio": 0.05, "warmup_steps": 10,
                                "ema": 0.98, "start_noise": 0.05, "step_noise": 0.05,
                                "curriculum": [{"until": 0.3, "halt_max_steps": 1}]},
    }),
    "9x9": (64, 20.4e12, {
        "data": LARGE,
        "model": MODEL | {"d_model": 64, "halt_max_steps": 8},
        "training": TRAINING | {"batch_size": 48, "steps": 1571, "lr": 0.02, "lr_min_ratio": 0.0, "warmup_steps": 78,
                                "beta2": 0.97, "ema": 0.995},
    }),
}  # fmt: skip
"""Supervision steps of the test, training FLOPs of the laptop study's recipe, and the run."""


def measured(folder: Path, name: str, seeds: int) -> dict[str, Any]:
    """Training FLOPs, CPU seconds and the exact accuracy of every seed."""
    steps, _, case = CASES[name]
    run = RunConfig.model_validate(case)
    pool, source, data = json.dumps(case["data"]), str(folder / "source"), str(folder / "data")
    timed([*TRM, "data", "source", "--config", pool, "--out", source])
    timed([*TRM, "data", "build", "--config", pool, "--source", source, "--out", data])
    wanted = json.dumps({"unroll": [steps], "train_puzzles": 0, "traces": 0})
    accuracies, seconds = [], []
    for seed in range(seeds):
        out, result = str(folder / f"run{seed}"), folder / f"{seed}.json"
        shared = ["--dataset", data, "--threads", "1", "--out"]
        config = json.dumps({**case, "seed": seed})
        kept = ["--checkpoints", str(folder / f"kept{seed}")]
        seconds.append(timed([*TRM, "train", "--config", config, *shared, out, *kept])[1])
        timed([*TRM, "evaluate", "--run", out, "--evaluation", wanted, *shared, str(result)])
        accuracies.append(json.loads(result.read_text())["results"][0]["exact_accuracy"])
    sizes = shape(run.data)
    flops = train_flops(run.model, run.training, sizes.seq_len, sizes.vocab_size)
    return {"case": name, "TFLOP": flops / 1e12, "CPU s": mean(seconds), "exact": accuracies}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    made.add_argument("--seeds", type=int, default=5)
    args = made.parse_args()
    rows = []
    for name in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            row = measured(Path(folder), name, args.seeds)
        counts = mean(row["exact"]) >= LEAST_MEAN and min(row["exact"]) >= LEAST
        rows.append(row | {"ratio": CASES[name][1] / row["TFLOP"] / 1e12 * counts})
    finish(rows, args.json)


if __name__ == "__main__":
    main()
