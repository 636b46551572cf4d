"""One command for a GPU: check every kernel and time our step against plain PyTorch, eager and compiled.

    python -m benchmarks.gpu --out benchmarks/out/gpu
    python -m benchmarks.gpu --tiny --out /tmp/tiny       # the same script on a CPU, in seconds

It prints a table and writes OUT/gpu.json, the file to attach to a report. Each job runs in its own process, so a
failure does not affect the others. Finished jobs (OUT/<job>.json) are not repeated: after an interruption, run the same
command again. Exit code 1: a job or a check failed. Ratios are medians over paired rounds (ours and the baseline take
turns); `share` is relative to the matrix product rate measured in the same process. The recipe is the paper's
(bfloat16, batch 768) on random inputs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import step
from benchmarks.frame import best_seconds, cell, in_turns
from trm.backends.registry import open_backend
from trm.io import dump, read_json, write_text
from trm.provenance import provenance
from trm.study.flops import forward_flops, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig

MIXERS = ("mlp", "attention")
VARIANTS = {"ours": {}, "uncaptured": {"TRM_CUDA_GRAPH": "0"}, "plain": {"TRM_TRITON": "0"}}
"""Our step as it is, without a CUDA graph, and without the Triton kernels."""
TEST_PUZZLES = 422_786
"""Sudoku-Extreme's."""
TARGETS = {"train-mlp": 2.5, "train-attention": 1.8, "evaluate-mlp": 2.5, "evaluate-attention": 2.5}
"""Smallest ratios to the compiled baseline that the project accepts on one H200."""


def jobs() -> list[str]:
    """All jobs, the most important first."""
    compiled = [f"{what}-{mixer}-compiled" for what in ("train", "evaluate") for mixer in MIXERS]
    kinds = ("eager", "uncaptured", "plain", "whole")
    return ["ceilings", "checks", *compiled, *(f"train-{mixer}-{kind}" for kind in kinds for mixer in MIXERS)]


class Sizes:
    """The paper's sizes, or tiny ones."""

    def __init__(self, tiny: bool):
        self.tiny, self.cells, self.vocab = tiny, 81, 11
        self.batch = 4 if tiny else 768
        self.rounds = 2 if tiny else 9
        self.evaluation_steps = 2 if tiny else 16
        self.evaluation_rows = (4,) if tiny else (384, 1536)
        self.precision = "float32" if tiny else "bfloat16"
        # A tiny run on a CPU only traces: compiling would take minutes.
        self.compiler = {"backend": "eager"} if tiny else {}

    def run(self, mixer: str) -> RunConfig:
        """The config of the training run."""
        fields: dict[str, Any] = {"mixer": mixer, "position": "rope" if mixer == "attention" else "none"}
        if self.tiny:
            fields |= {"d_model": 32, "heads": 1, "h_cycles": 2, "l_cycles": 1, "puzzle_tokens": 1}
        training = TrainingConfig(batch_size=self.batch, precision=self.precision, steps=65_104, ema=0.999)
        return RunConfig(model=ModelConfig(**fields), training=training)


def backend_of(variant: str) -> Any:
    """Our backend in one of the VARIANTS."""
    for name in {name for settings in VARIANTS.values() for name in settings}:
        os.environ.pop(name, None)
    os.environ.update(VARIANTS[variant])
    return open_backend("auto")


def memory_of(calls: Callable[[], object], repeat: int, backend: Any, before: int) -> int:
    """Peak bytes of device memory while `calls` runs, minus the `before` in use when the variant was made."""
    if backend.device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeat):
        calls()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def ceilings(sizes: Sizes) -> dict[str, Any]:
    """Rates of a large matrix product and of a copy."""
    backend = backend_of("ours")
    count = 1 << (20 if sizes.tiny else 31)
    source = torch.rand(count // 4, device=backend.device)
    target = torch.empty_like(source)
    return {
        "device": backend.device_name(),
        "torch": torch.__version__,
        "flops_per_second": step.matmul_ceiling(sizes.precision, backend),
        "bytes_per_second": 2 * count / best_seconds(lambda: target.copy_(source), backend),
    }


def checks(sizes: Sizes) -> dict[str, Any]:
    """Every kernel and the whole network against float64."""
    from trm.backends.cuda import available

    if not available() or not torch.cuda.is_available():
        reason = "there is no GPU" if available() else "triton is not installed"
        return {"skipped": f"{reason}: tests/backends/cuda checks the kernels"}
    from benchmarks import gpu_checks
    from trm.backends.cuda.checks import TOLERANCE, Shapes

    device = torch.device("cuda")
    parts = [gpu_checks.kernels(Shapes(), dtype, device) for dtype in TOLERANCE]
    parts += [gpu_checks.whole_network(sizes.run(mixer).model, 16, device) for mixer in MIXERS]
    found, broken = [], []
    for part in parts:
        try:
            for check in part:
                found.append(check._asdict() | {"passed": check.passed})
                if not check.passed:
                    print(
                        f"  FAILED {check.name}: error {check.error:.2e}, limit {check.limit:.1e}", flush=True
                    )
        except Exception:
            broken.append(traceback.format_exc().splitlines()[-1])
            traceback.print_exc()
    passed = sum(check["passed"] for check in found)
    failed = bool(broken) or passed < len(found)
    return {"passed": f"{passed} of {len(found)}", "broken": broken, "failed": failed, "checks": found}


def compare(
    sizes: Sizes, backend: Any, calls: dict[str, Callable[[], None]], rounds: int, rows: int, flops: float
) -> dict[str, Any]:
    """Rates of ours and of the baseline in turns, and our share of the matrix product's rate."""
    found = in_turns(calls, rounds, backend)
    ours, theirs = found["ours"]["seconds"], found["baseline"].pop("seconds")
    ceiling = step.matmul_ceiling(sizes.precision, backend)
    rates = {"rows_per_second": rows / ours, "baseline_rows_per_second": rows / theirs}
    share = {"share": rows * flops / ours / ceiling, "ceiling": ceiling, "rounds": rounds}
    return found["baseline"] | rates | share


def train(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """Our training step against the baseline's, or against another variant of ours."""
    run, backend = sizes.run(mixer), backend_of("ours")
    allocated = torch.cuda.memory_allocated if backend.device.type == "cuda" else lambda: 0
    before = allocated()
    ours, _ = step.our_step(run, sizes.cells, sizes.vocab, backend)
    memory = memory_of(ours, 8, backend, before)
    before = allocated()
    if kind in VARIANTS:
        theirs, _ = step.our_step(run, sizes.cells, sizes.vocab, backend_of(kind))
    else:
        theirs, _ = step.their_step(run, sizes.cells, sizes.vocab, backend, kind, sizes.compiler)
    baseline_memory = memory_of(theirs, 3, backend, before)
    flops = step_flops(run.model, sizes.cells, sizes.vocab)
    found = compare(sizes, backend, {"ours": ours, "baseline": theirs}, sizes.rounds, sizes.batch, flops)
    return found | {"memory": memory, "baseline_memory": baseline_memory, "network": backend.network}


def evaluate(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """Batches of puzzles through all supervision steps, ours and the baseline's, each at its best batch size."""
    run, backend = sizes.run(mixer), backend_of("ours")
    _, state = step.our_step(run, sizes.cells, sizes.vocab, backend)
    _, net = step.their_step(run, sizes.cells, sizes.vocab, backend, kind, sizes.compiler)
    tried, steps = {}, sizes.evaluation_steps
    flops = steps * forward_flops(run.model, sizes.cells, sizes.vocab)
    for rows in sizes.evaluation_rows:
        ours, _ = step.our_evaluation(state, backend, steps, rows)
        theirs = step.their_evaluation(net, backend, rows, sizes.cells, sizes.vocab, steps)
        calls = {"ours": ours, "baseline": theirs}
        tried[rows] = compare(sizes, backend, calls, max(2, sizes.rounds // 3), rows, flops)
    best = max(tried, key=lambda rows: tried[rows]["rows_per_second"])
    rate = tried[best]["rows_per_second"]
    baseline_rate = max(found["baseline_rows_per_second"] for found in tried.values())
    rates = {"baseline_rows_per_second": baseline_rate, "ratio_best": rate / baseline_rate}
    rates["full_test_minutes"] = TEST_PUZZLES / rate / 60
    return tried[best] | rates | {"batch": best, "steps": steps, "batches": tried}


def line(name: str, found: dict[str, Any]) -> str:
    """One job's result, for the console."""
    shown = {key: value for key, value in found.items() if key not in ("checks", "batches")}
    if (target := TARGETS.get(name.rpartition("-")[0])) and name.endswith(("compiled", "whole")):
        shown["target"] = target
    return f"{name:28} {cell(shown)}"


def main() -> int:
    """Run the jobs that are not finished and print all results."""
    names = jobs()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; kept between calls")
    parser.add_argument("--only", nargs="+", metavar="JOB", choices=names, help=", ".join(names))
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script on a CPU")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.job:
        what, *rest = args.job.split("-")
        job = {"ceilings": ceilings, "checks": checks, "train": train, "evaluate": evaluate}[what]
        document = {"job": args.job, "tiny": args.tiny, "result": job(Sizes(args.tiny), *rest)}
        write_text(args.out / f"{args.job}.json", dump(document | {"provenance": provenance()}))
        return 0
    failed = set()
    for name in args.only or names:
        if (args.out / f"{name}.json").exists():
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--job", name]
        if code := subprocess.run(command, check=False).returncode:
            failed.add(name)
        print(f"== {name}: {'FAILED' if code else 'done'} in {time.monotonic() - start:.0f} s", flush=True)
    paths = {name: args.out / f"{name}.json" for name in names}
    results = {name: read_json(path) for name, path in paths.items() if path.exists()}
    write_text(args.out / "gpu.json", dump(results))
    print("\n".join(line(name, document["result"]) for name, document in results.items()))
    failed |= {name for name, found in results.items() if found["result"].get("failed")}
    if failed:
        print(f"failed: {', '.join(sorted(failed))}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
