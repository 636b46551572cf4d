"""The small ARC fixtures (tests/tasks/arc/files): five tasks, two attempts by vote, each seed a run of a few minutes.

    python -m benchmarks.arc --seeds 0 1 2 --out benchmarks/out/arc

Trained on are the demonstrations of the five tasks, never their test pairs, and generated tasks of the same families
(`trm data tasks`), as the paper adds its training tasks and ConceptARC. All five are evaluation tasks here. The
curve is of the hidden pairs of four generated tasks.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from trm.__main__ import main as trm
from trm.io import sha256_file
from trm.provenance import provenance

FIXTURES = Path(__file__).parent.parent / "tests" / "tasks" / "arc" / "files"
SIDE = 5
"""Of the canvas: `stack`, whose answer has six rows, is left out and counts as not solved."""
GENERATED = {"count": 480, "pairs": 4, "families": "recolour,mirror,fill,middle"}
"""Many tasks of few pairs: the rules carry over to tasks that show no more than that."""
DATA = {"task": "arc", "source": "json", "train_puzzles": None, "validation_puzzles": 4, "augmentations": 8}
MODEL = {"d_model": 64, "heads": 4, "h_cycles": 1, "l_cycles": 2, "halt_max_steps": 2, "puzzle_tokens": 1}
TRAINING = {"batch_size": 64, "steps": 5000, "lr": 3e-3, "lr_min_ratio": 0.1, "puzzle_lr": 4e-2, "ema": 0.99}
TRAINING |= {"warmup_steps": 50, "weight_decay": 0.1, "puzzle_weight_decay": 0.1, "precision": "auto"}


def call(*arguments: str) -> None:
    """One of the project's commands; its failure ends this one."""
    code = trm(list(arguments))
    if code:
        raise SystemExit(code)


def build(out: Path, side: int, generated: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The data set, and its config as a run has it (files by their checksums)."""
    options = [part for name, value in generated.items() for part in (f"--{name}", str(value))]
    call("data", "tasks", *options, "--side", str(side), "--out", str(out / "generated.json"))
    files = [out / "generated.json"]
    for path in sorted(FIXTURES.glob("*.json")):
        files.append(out / f"evaluation-{path.name}")  # tasks of files so named are tested on
        shutil.copy(path, files[-1])
    data = DATA | {"arc_side": side, "sha256": [sha256_file(path) for path in files]}
    data |= {"files": [str(path) for path in files]}
    text = json.dumps(data)
    call("data", "source", "--config", text, "--out", str(out / "source"))
    call("data", "build", "--config", text, "--source", str(out / "source"), "--out", str(out / "data"))
    return out / "data", data


def run(
    seed: int, data: dict[str, Any], dataset: Path, out: Path, training: dict[str, Any]
) -> dict[str, Any]:
    """Train and evaluate one seed: tasks solved, share of hidden inputs by task, validation curve, seconds."""
    config = {"model": MODEL, "data": data, "training": training, "seed": seed}
    folder, found = out / f"seed{seed}", out / f"seed{seed}.json"
    begun = time.monotonic()
    places = [
        "--dataset",
        str(dataset),
        "--out",
        str(folder),
        "--checkpoints",
        str(out / f"checkpoints{seed}"),
    ]
    runtime = json.dumps({"log_every": 100, "evals": 10, "checkpoint_minutes": 10})
    call("train", "--config", json.dumps(config), *places, "--runtime", runtime, "--threads", "1")
    trained = time.monotonic() - begun
    places = ["--run", str(folder), "--dataset", str(dataset), "--out", str(found)]
    call("evaluate", *places, "--evaluation", json.dumps({"train_puzzles": 0, "traces": 0}), "--threads", "1")
    document = json.loads(found.read_text())
    votes = next(result for result in document["results"] if result["policy"] == "vote")
    with (folder / "history.csv").open() as rows:
        curve = [
            (int(row["step"]), float(row["eval/exact_accuracy"]))
            for row in csv.DictReader(rows)
            if row.get("eval/exact_accuracy")
        ]
    return {"seed": seed, "solved": votes["correct"], "tasks": document["tasks"], "curve": curve} | {
        "train_seconds": trained
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=TRAINING["steps"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/arc"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    dataset, data = build(args.out, SIDE, GENERATED)
    rows = []
    for seed in args.seeds:
        rows.append(run(seed, data, dataset, args.out, TRAINING | {"steps": args.steps}))
        shares = ", ".join(f"{task['task']} {task['vote']:g}" for task in rows[-1]["tasks"])
        print(
            f"seed {seed}: {rows[-1]['solved']} of 5 in {rows[-1]['train_seconds']:.0f} s ({shares})",
            flush=True,
        )
    (args.out / "arc.json").write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=1))


if __name__ == "__main__":
    main()
