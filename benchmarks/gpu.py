"""One command for a GPU: check every kernel and time our step against plain PyTorch, eager and compiled.

    python -m benchmarks.gpu --out benchmarks/out/gpu --minutes 9      # repeat until it exits with 0
    python -m benchmarks.gpu --tiny --out /tmp/tiny                    # the same script on a CPU, in seconds
    python -m benchmarks.gpu --tiles      # measure the kernels' tiles and update trm/network/cuda/tiles.json

It prints a table and writes OUT/gpu.json, the file to attach to a report. Every job runs in a process of its own, so
one that fails leaves the others alone; finished jobs (OUT/<job>.json) are not repeated. Exit code 75: jobs are left,
1: a job or a check failed, 0: all done. Ratios are medians over paired rounds (ours and the baseline take turns);
`share` is of the matrix product rate measured in the same process. The recipe is the paper's (bfloat16, batch 768);
inputs are random.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks import step
from benchmarks.frame import in_turns
from trm.devices import open_backend
from trm.provenance import provenance
from trm.study.flops import forward_flops, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig

MIXERS = ("mlp", "attention")
VARIANTS = {"ours": {}, "uncaptured": {"TRM_CUDA_GRAPH": "0"}, "fused": {"TRM_TRITON": "0"}}
"""Ways to run our step: as it comes, without a CUDA graph, without the Triton kernels."""
UNFINISHED = 75
SHORTEST = 20.0
"""Seconds left below which no job is started."""
TARGETS = {"train-mlp": 2.5, "train-attention": 1.8, "evaluate-mlp": 2.5, "evaluate-attention": 2.5}
"""Smallest ratios to the compiled baseline that the project accepts on one H200."""


def jobs() -> list[str]:
    """All jobs, the most important first."""
    first = ["ceilings", "checks"]
    first += [f"train-{mixer}-compiled" for mixer in MIXERS] + [
        f"evaluate-{mixer}-compiled" for mixer in MIXERS
    ]
    second = [f"train-{mixer}-eager" for mixer in MIXERS]
    second += [f"train-{mixer}-{variant}" for mixer in MIXERS for variant in ("uncaptured", "fused")]
    return first + second + [f"train-{mixer}-whole" for mixer in MIXERS]


class Sizes:
    """The paper's sizes, or tiny ones."""

    def __init__(self, tiny: bool):
        self.tiny, self.cells, self.vocab = tiny, 81, 11
        self.batch = 4 if tiny else 768
        self.rounds = 2 if tiny else 9
        self.evaluation_steps = 2 if tiny else 16
        self.evaluation_rows = (4,) if tiny else (384, 1536)
        self.dtype = torch.float32 if tiny else torch.bfloat16
        # the tiny run on a CPU only traces, since compiling takes minutes
        self.compiler = {"backend": "eager"} if tiny else {}

    def run(self, mixer: str) -> Any:
        """The training run's config."""
        fields: dict[str, Any] = {"mixer": mixer, "position": "rope" if mixer == "attention" else "none"}
        if self.tiny:
            fields |= {"d_model": 32, "heads": 1, "h_cycles": 2, "l_cycles": 1, "puzzle_tokens": 1}
        precision = "float32" if self.tiny else "bfloat16"
        training = TrainingConfig(batch_size=self.batch, precision=precision, steps=65_104, ema=0.999)
        return RunConfig(model=ModelConfig(**fields), training=training)


def backend_of(variant: str) -> Any:
    """Our backend as `variant` says."""
    for name in {name for settings in VARIANTS.values() for name in settings}:
        os.environ.pop(name, None)
    os.environ.update(VARIANTS[variant])
    return open_backend("auto")


def memory_of(call: Any, backend: Any, before: int) -> int:
    """Most bytes of the device in use while `call` runs, above the `before` in use when the variant was made."""
    if backend.device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def allocated(backend: Any) -> int:
    """Bytes of the device in use."""
    return torch.cuda.memory_allocated() if backend.device.type == "cuda" else 0


def ceilings(sizes: Sizes) -> dict[str, Any]:
    """Rates of a large matrix product and of a copy."""
    backend = backend_of("ours")
    count = 1 << (20 if sizes.tiny else 31)
    source = torch.rand(count // 4, device=backend.device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        backend.synchronize()
        begun = time.perf_counter()
        target.copy_(source)
        backend.synchronize()
        best = min(best, time.perf_counter() - begun)
    return {
        "device": backend.device_name(),
        "torch": torch.__version__,
        "flops_per_second": step.matmul_ceiling(sizes.dtype, backend),
        "bytes_per_second": 2 * count / best,
    }


def checks(sizes: Sizes) -> dict[str, Any]:
    """Every kernel and the whole network against float64."""
    from trm.network.cuda import available

    if not available() or not torch.cuda.is_available():
        reason = "triton is not installed" if not available() else "there is no GPU"
        return {"skipped": f"{reason}: the kernels are checked by tests/network/cuda"}
    from benchmarks import gpu_checks

    device, found, broken = torch.device("cuda"), [], []
    parts = [
        lambda dtype=dtype: gpu_checks.kernels(gpu_checks.Shapes(), dtype, device)
        for dtype in gpu_checks.TOLERANCE
    ]
    for mixer in MIXERS:
        model = ModelConfig(mixer=mixer, position="rope" if mixer == "attention" else "none")
        parts.append(lambda model=model: gpu_checks.whole_network(model, 16, device))
    for part in parts:
        try:
            for check in part():
                found.append(check)
                if not check.passed:
                    print(
                        f"  FAILED {check.name}: error {check.error:.2e}, limit {check.limit:.1e}", flush=True
                    )
        except Exception:
            broken.append(traceback.format_exc().splitlines()[-1])
            traceback.print_exc()
    results = [check._asdict() | {"passed": check.passed} for check in found]
    print(f"  {sum(r['passed'] for r in results)} of {len(results)} checks passed, {len(broken)} broke off")
    return {
        "checks": results,
        "broken": broken,
        "failed": bool(broken) or not all(r["passed"] for r in results),
    }


def timed(
    sizes: Sizes, backend: Any, ours: Any, theirs: Any, rounds: int, rows: int, flops: float
) -> dict[str, Any]:
    """Rates of ours and of the baseline in turns, and our share of the matrix product's rate."""
    found = in_turns({"ours": ours, "baseline": theirs}, rounds, backend)
    mine, its = found["ours"]["seconds"], found["baseline"].pop("seconds")
    ceiling = step.matmul_ceiling(sizes.dtype, backend)
    rates = {"rows_per_second": rows / mine, "baseline_rows_per_second": rows / its}
    return (
        found["baseline"]
        | rates
        | {"share": rows * flops / mine / ceiling, "ceiling": ceiling, "rounds": rounds}
    )


def train(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """A training step of ours against the baseline's, or against another way of ours."""
    run, backend = sizes.run(mixer), backend_of("ours")
    before = allocated(backend)
    ours, _ = step.our_step(run, sizes.cells, sizes.vocab, backend)
    memory = memory_of(lambda: [ours() for _ in range(8)], backend, before)
    middle = allocated(backend)
    if kind in VARIANTS:
        theirs, _ = step.our_step(run, sizes.cells, sizes.vocab, backend_of(kind))
    else:
        theirs, _ = step.their_step(run, sizes.cells, sizes.vocab, backend, kind, sizes.compiler)
    their_memory = memory_of(lambda: [theirs() for _ in range(3)], backend, middle)
    flops = step_flops(run.model, sizes.cells, sizes.vocab)
    found = timed(sizes, backend, ours, theirs, sizes.rounds, sizes.batch, flops)
    return found | {"memory": memory, "baseline_memory": their_memory, "network": backend.network}


def evaluate(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """Batches of puzzles through all steps, ours against the baseline's, each at the best of some batch sizes."""
    run, backend = sizes.run(mixer), backend_of("ours")
    _, state = step.our_step(run, sizes.cells, sizes.vocab, backend)
    _, net = step.their_step(run, sizes.cells, sizes.vocab, backend, kind, sizes.compiler)
    tried, steps = {}, sizes.evaluation_steps
    flops = steps * forward_flops(run.model, sizes.cells, sizes.vocab)
    for rows in sizes.evaluation_rows:
        ours, _ = step.our_evaluation(state, backend, steps, rows)
        theirs = step.their_evaluation(net, backend, rows, sizes.cells, sizes.vocab, steps)
        tried[rows] = timed(sizes, backend, ours, theirs, max(2, sizes.rounds // 3), rows, flops)
    best = max(tried, key=lambda rows: tried[rows]["rows_per_second"])
    rate = tried[best]["rows_per_second"]
    their_rate = max(found["baseline_rows_per_second"] for found in tried.values())
    return tried[best] | {
        "ratio_best": rate / their_rate,
        "batch": best,
        "batches": {str(rows): value for rows, value in tried.items()},
        "steps": steps,
        "baseline_rows_per_second": their_rate,
        "full_test_minutes": 422_786 / rate / 60,
    }


def line(name: str, found: dict[str, Any]) -> str:
    """One job's result, for the console."""
    if name == "ceilings":
        rates = f"{found['flops_per_second'] / 1e12:.1f} TFLOP/s, {found['bytes_per_second'] / 1e12:.2f} TB/s"
        return f"{name:28} {found['device']}, torch {found['torch']}: {rates}"
    if name == "checks":
        passed = [check["passed"] for check in found.get("checks", ())]
        text = f"{sum(passed)} of {len(passed)} passed, {len(found.get('broken', ()))} broke off"
        return f"{name:28} {found.get('skipped') or text}"
    low, high = found["ratio_quartiles"]
    target = TARGETS.get(name.rpartition("-")[0]) if name.endswith(("compiled", "whole")) else None
    text = f" (target {target})" if target else ""
    text += f"  {100 * found['share']:.0f} % of the ceiling"
    if "memory" in found:
        text += f"  {found['memory'] / 1e9:.1f} GB (baseline {found['baseline_memory'] / 1e9:.1f})"
    if "full_test_minutes" in found:
        text += f"  422,786 puzzles in {found['full_test_minutes']:.1f} min at this rate"
    return (
        f"{name:28} {found['rows_per_second']:9.1f} rows/s, baseline {found['baseline_rows_per_second']:9.1f}"
        f"  ratio {found['ratio']:.2f} ({low:.2f}-{high:.2f}){text}"
    )


def one_job(name: str, args: argparse.Namespace) -> int:
    """Do a job in this process and write its result."""
    sizes = Sizes(args.tiny)
    what, *rest = name.split("-")
    job = {"ceilings": ceilings, "checks": checks, "train": train, "evaluate": evaluate}[what]
    result = job(sizes, *rest)
    document = {"job": name, "tiny": args.tiny, "result": result, "provenance": provenance()}
    part = args.out / f"{name}.json.part"
    part.write_text(json.dumps(document, indent=1))
    part.replace(args.out / f"{name}.json")
    return 0


def main() -> int:
    """Do the jobs that are not done yet, as time allows, and print all results."""
    names = jobs()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the results; kept between calls")
    parser.add_argument(
        "--tiles", action="store_true", help="measure tiles and update the table; nothing else"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="time of this call (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="JOB", choices=names, help=", ".join(names))
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script on a CPU")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiles:
        from benchmarks import gpu_tiles

        gpu_tiles.main()
        return 0
    if args.out is None:
        parser.error("--out is required")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.job:
        return one_job(args.job, args)
    deadline = time.monotonic() + 60 * args.minutes
    left, failed = [], []
    for name in args.only or names:
        if (args.out / f"{name}.json").exists():
            continue
        seconds = deadline - time.monotonic()
        if seconds < (0 if args.tiny else SHORTEST):
            left.append(name)
            continue
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--job", name]
        try:
            code = subprocess.run(command, check=False, timeout=max(1.0, seconds)).returncode
        except subprocess.TimeoutExpired:
            left.append(name)
            print(f"== {name}: out of time after {time.monotonic() - begun:.0f} s", flush=True)
            continue
        if code:
            failed.append(name)
        print(f"== {name}: {'FAILED' if code else 'done'} in {time.monotonic() - begun:.0f} s", flush=True)
    done = {name: args.out / f"{name}.json" for name in names}
    results = {name: json.loads(path.read_text()) for name, path in done.items() if path.exists()}
    (args.out / "gpu.json").write_text(json.dumps(results, indent=1))
    print("\n".join(line(name, document["result"]) for name, document in results.items()), flush=True)
    failed += [name for name, found in results.items() if found["result"].get("failed")]
    if failed:
        print(f"failed: {', '.join(sorted(set(failed)))}")
    if left:
        print(f"left for the next call: {', '.join(left)}")
    return UNFINISHED if left else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
