"""What a small run costs before it learns anything: `trm train` of one step, and `trm evaluate`.

    python -m benchmarks.fixed_cost [--rounds 5] [--json fixed_cost.json]

Each round starts, in turns, `python -c "import torch"` (no run can be shorter), the pipeline's training command for one
step of a laptop model, which also evaluates it, and the evaluation command, which takes that result over; each is a
process on one thread. `run` is both commands together. The first round fills the caches (Python's, numba's) and is
reported apart, as `cold`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.frame import TRM, Ratio, finish, parser, spread, timed

ALLOWED = 4.0
"""Target: seconds of a run, training and evaluation together."""
DATA = {
    "source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8,
    "train_puzzles": 300, "augmentations": 16, "validation_puzzles": 100, "test_puzzles": 400,
}  # fmt: skip
MODEL = {"d_model": 32, "heads": 4, "h_cycles": 2, "l_cycles": 2, "puzzle_tokens": 1, "halt_max_steps": 8}
TRAINING = {"batch_size": 128, "steps": 1, "ema": 0.99, "precision": "auto"}


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """By command: wall seconds of the warm rounds, and CPU and cold seconds."""
    pool, source, data = json.dumps(DATA), str(folder / "source"), str(folder / "data")
    timed([*TRM, "data", "source", "--config", pool, "--out", source])
    timed([*TRM, "data", "build", "--config", pool, "--source", source, "--out", data])
    config = json.dumps({"data": DATA, "model": MODEL, "training": TRAINING})
    shared = ["--dataset", data, "--threads", "1", "--out"]
    taken: dict[str, list[tuple[float, float]]] = {"import torch": [], "train": [], "evaluate": [], "run": []}
    for number in range(rounds + 1):
        run, kept = str(folder / f"{number}/run"), str(folder / f"{number}/kept")
        evaluation = str(folder / f"{number}/evaluation.json")
        train = ["train", "--config", config, *shared, run, "--checkpoints", kept, "--evaluations", "[{}]"]
        taken["import torch"].append(timed([sys.executable, "-c", "import torch"]))
        taken["train"].append(timed([*TRM, *train]))
        taken["evaluate"].append(
            timed([*TRM, "evaluate", "--run", run, *shared, evaluation, "--ahead", kept])
        )
        parts = (taken[name][-1] for name in ("train", "evaluate"))
        taken["run"].append(tuple(map(sum, zip(*parts, strict=True))))
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
    """Measure, print, and write JSON if asked."""
    args = parser(__doc__, rounds=5).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), args.rounds)
    finish(rows, args.json, [Ratio.of_limit("fixed cost of a run", ALLOWED, rows[-1])])


if __name__ == "__main__":
    main()
