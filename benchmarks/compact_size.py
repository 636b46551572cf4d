"""Bytes of the compact form of a checkpoint at the paper's size after real steps; seconds to write and to read it.

    python -m benchmarks.compact_size --mixers mlp attention --steps 300 --out benchmarks/out/compact_size

The model is the paper's; to be quick on a CPU the batch is small and the recursion shallow, which changes no size of a
tensor. The learning rate stands at its peak from the first step, so weights and average are soon as far apart as in the
middle of a run. Bytes of a weight are shown for each tensor.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from benchmarks.compact import build_dataset, trainer
from trm.provenance import provenance
from trm.study.schema import RunConfig
from trm.training.checkpoints.compact import packed, unpacked

MODEL = {"h_cycles": 1, "l_cycles": 2}
DATA = {"source": "generate", "clues_min": 24, "clues_max": 30, "train_puzzles": 200, "validation_puzzles": 8}
DATA |= {"test_puzzles": 8, "augmentations": 1000}
TRAINING = {"warmup_steps": 0, "batch_size": 2}
MIXERS = {"mlp": {"mixer": "mlp"}, "attention": {"mixer": "attention", "position": "rope"}}


def measure(mixer: str, steps: list[int], data: Path, out: Path, threads: int) -> list[dict[str, Any]]:
    """A row for each of the steps, in ascending order."""
    run = RunConfig.model_validate(
        {"model": MODEL | MIXERS[mixer], "data": DATA, "training": TRAINING | {"steps": max(10, *steps)}}
    )
    found = trainer(run, data, out, mixer, threads)
    rows = []
    for step in range(1, steps[-1] + 1):
        stage = found.stages[0]
        found.program(found.feed.batch(step), stage.h_cycles, stage.l_cycles)
        if step not in steps:
            continue
        state = {name: tensor.clone() for name, tensor in found.state.shared_tensors().items()}
        begun = time.perf_counter()
        data_bytes = packed(state)
        wrote = time.perf_counter() - begun
        begun = time.perf_counter()
        back = unpacked(data_bytes)
        read = time.perf_counter() - begun
        for name, tensor in state.items():
            kept = tensor.bfloat16() if name.startswith("moment") else tensor
            if not torch.equal(back[name].flatten().view(torch.uint8), kept.flatten().view(torch.uint8)):
                raise SystemExit(f"{name} did not come back as it was")
        rows.append(
            {"mixer": mixer, "step": step, "parameters": state["params"].numel(), "bytes": len(data_bytes)}
            | {"plain_bytes": len(save(state)), "write_seconds": wrote, "read_seconds": read}
        )
        print(
            f"{mixer:10} step {step:5}  {len(data_bytes) / 1e6:5.1f} MB of {rows[-1]['plain_bytes'] / 1e6:.1f}, "
            f"{len(data_bytes) / state['params'].numel():.2f} bytes a parameter, written in {wrote:.1f} s, "
            f"read in {read:.1f} s",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS))
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 300])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/compact_size"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data = build_dataset(DATA, args.out)
    rows = [
        row
        for mixer in args.mixers
        for row in measure(mixer, sorted(args.steps), data, args.out, args.threads)
    ]
    (args.out / "compact_size.json").write_text(
        json.dumps({"rows": rows, "provenance": provenance()}, indent=1)
    )


if __name__ == "__main__":
    main()
