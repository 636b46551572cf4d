"""The fixed cost of a small run: `trm train` with one step, then `trm evaluate`.

    python -m benchmarks.fixed_cost [--rounds 5] [--json fixed_cost.json]

Each round runs, in turns, `python -c "import torch"` (a lower bound), the pipeline's training command for one step of a
laptop model, which also evaluates it, and the evaluation command, which takes over that result; each is a process with
one thread. `run` is the sum of both commands. The first round fills the caches (Python's, numba's) and is reported as
`cold`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.frame import TRM, Ratio, finish, parser, spread, timed

ALLOWED = 4.0
"""Target: seconds of training and evaluation together."""
DATA = {
    "source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8,
    "train_puzzles": 300, "augmentations": 16, "validation_puzzles": 100, "test_puzzles": 400,
}  # fmt: skip
MODEL = {"d_model": 32, "heads": 4, "h_cycles": 2, "l_cycles": 2, "puzzle_tokens": 1, "halt_max_steps": 8}
TRAINING = {"batch_size": 128, "steps": 1, "ema": 0.99, "precision": "auto"}


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Wall seconds of the warm rounds, CPU seconds and cold seconds of each command."""
    pool, source, data = json.dumps(DATA), str(folder / "source"), str(folder / "data")
    timed([*TRM, "data", "source", "--config", pool, "--out", source])
    timed([*TRM, "data", "build", "--config", pool, "--source", source, "--out", data])
    config = json.dumps({"data": DATA, "model": MODEL, "training": TRAINING})
    shared = ["--dataset", data, "--threads", "1", "--out"]
    taken: dict[str, list[Any]] = {"import torch": [], "train": [], "evaluate": [], "run": []}
    for number in range(rounds + 1):
        run, kept, out = (str(folder / f"{number}" / name) for name in ("run", "kept", "evaluation.json"))
        train = ["train", "--config", config, *shared, run, "--checkpoints", kept]
        evaluate = ["evaluate", "--run", run, *shared, out]
        taken["import torch"].append(timed([sys.executable, "-c", "import torch"]))
        taken["train"].append(timed([*TRM, *train]))
        taken["evaluate"].append(timed([*TRM, *evaluate]))
        both = zip(taken["train"][-1], taken["evaluate"][-1], strict=True)
        taken["run"].append([sum(times) for times in both])
        print(f"round {number} of {rounds} done", file=sys.stderr, flush=True)
    return [
        {
            "command": name,
            **spread([wall for wall, _ in times[1:]]),
            "cpu": spread([cpu for _, cpu in times[1:]])["median"],
            "cold": times[0][0],
        }
        for name, times in taken.items()
    ]


def main() -> None:
    args = parser(__doc__, rounds=5).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), args.rounds)
    finish(rows, args.json, [Ratio.of_limit("fixed cost of a run", ALLOWED, rows[-1])])


if __name__ == "__main__":
    main()
