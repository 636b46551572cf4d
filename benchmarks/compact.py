"""What resuming from the compact form of a checkpoint does to a run's curve, at laptop scale.

    python -m benchmarks.compact --seeds 0 1 2 --out benchmarks/out/compact

Each seed is trained to half its steps, then gone on with from the whole checkpoint and from the compact one. The
table shows the mean training loss and the validation accuracy after each later tenth, and their paired difference.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from trm.__main__ import main as trm
from trm.devices import open_backend
from trm.provenance import provenance
from trm.study.schema import RunConfig, RuntimeConfig
from trm.training.checkpoints.compact import export
from trm.training.checkpoints.folder import CheckpointFolder
from trm.training.dataset import Dataset
from trm.training.interrupt import EXIT_TERMINATED
from trm.training.loop import Trainer

MODEL = {"d_model": 32, "heads": 4, "h_cycles": 2, "l_cycles": 2, "halt_max_steps": 8, "puzzle_tokens": 1}
DATA = {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8}
DATA |= {"train_puzzles": 300, "augmentations": 0, "validation_puzzles": 256, "test_puzzles": 64}
TRAINING = {"batch_size": 64, "lr": 2e-3, "warmup_steps": 50, "weight_decay": 0.1}
TRAINING |= {"puzzle_weight_decay": 0.1, "ema": 0.99}
COLUMNS = ("train/lm_loss", "eval/exact_accuracy")


def build_dataset(data: dict[str, Any], out: Path) -> Path:
    """A generated data set; `data`: fields of its config."""
    config = json.dumps(data)
    for command in (
        ["source", "--config", config, "--out", str(out / "pool")],
        ["build", "--config", config, "--source", str(out / "pool"), "--out", str(out / "data")],
    ):
        if trm(["data", *command]):
            raise SystemExit(f"`trm data {command[0]}` failed")
    return out / "data"


def trainer(run: RunConfig, data: Path, root: Path, name: str, threads: int) -> Trainer:
    """The run with its checkpoints in `root`/`name`."""
    steps = run.training.steps
    settings = RuntimeConfig(log_every=steps // 10, evals=10, checkpoint_minutes=1e6)
    (root / f"{name}-out").mkdir(parents=True, exist_ok=True)
    folder = CheckpointFolder(root / name)
    backend = open_backend("cpu", threads)
    return Trainer(run, Dataset(data), root / f"{name}-out", folder, backend, settings, time.monotonic())


def stop_at(found: Trainer, step: int) -> None:
    """Train up to `step` and leave a checkpoint."""
    program = found.program

    def stopping(*args: Any) -> None:
        if found.record.done == step:
            signal.raise_signal(signal.SIGTERM)
        program(*args)

    found.program = stopping
    if found.run() != EXIT_TERMINATED:
        raise SystemExit(f"the run did not stop at step {step}")


def compared(seed: int, steps: int, data: Path, out: Path, threads: int) -> dict[str, list[dict[str, Any]]]:
    """The history of both ways of going on, by name."""
    run = RunConfig.model_validate(
        {"model": MODEL, "data": DATA, "training": TRAINING | {"steps": steps}, "seed": seed}
    )
    root = out / f"seed{seed}"
    shutil.rmtree(root, ignore_errors=True)
    stop_at(trainer(run, data, root, "full", threads), steps // 2)
    export(CheckpointFolder(root / "full"), CheckpointFolder(root / "compact"), 64)
    histories = {}
    for name in ("full", "compact"):
        found = trainer(run, data, root, name, threads)
        found.run()
        histories[name] = [row for row in found.record.rows if row["step"] > steps // 2]
    return histories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/compact"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data = build_dataset(DATA, args.out)
    runs = {seed: compared(seed, args.steps, data, args.out, args.threads) for seed in args.seeds}
    table = []
    for k, first in enumerate(runs[args.seeds[0]]["full"]):
        row: dict[str, Any] = {"step": first["step"]}
        for column in COLUMNS:
            full, compact = ([runs[s][name][k][column] for s in args.seeds] for name in ("full", "compact"))
            difference = [b - a for a, b in zip(full, compact)]
            row[column] = {"full": full, "compact": compact, "difference": difference}
        table.append(row)
        loss, exact = (row[column] for column in COLUMNS)
        print(
            f"step {row['step']:5}  loss {statistics.mean(loss['full']):.4f} full, "
            f"{statistics.mean(loss['compact']):.4f} compact;  "
            f"exact {100 * statistics.mean(exact['full']):5.1f} % full, "
            f"{100 * statistics.mean(exact['compact']):5.1f} % compact;  difference of exact by seed "
            + " ".join(f"{100 * value:+.1f}" for value in exact["difference"])
        )
    document = {"steps": args.steps, "seeds": args.seeds, "table": table, "provenance": provenance()}
    (args.out / "compact.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
