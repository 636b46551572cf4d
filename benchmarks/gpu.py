"""One command for a GPU: check every kernel, time ours against plain PyTorch, eager and compiled, and draw it.

    python -m benchmarks.gpu --out benchmarks/out/gpu --minutes 9      # say it again until it exits with 0
    python -m benchmarks.gpu --tiny --out /tmp/tiny                    # the same script on a CPU, in seconds

Every job runs in a process of its own, so a broken variant costs itself only; what is done stands in OUT/<job>.json and
is not done again. Exit code 75: time is up and jobs are left; 1: a job or a check failed; 0: all done. Ratios are
medians over paired rounds (ours and the baseline take turns); `share` is of the matrix product rate measured in the
same process. The recipe is the paper's (bfloat16, batch 768); inputs are random.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import gpu_report

MIXERS = ("mlp", "attention")
VARIANTS = {"ours": {}, "uncaptured": {"TRM_CUDA_GRAPH": "0"}, "fused": {"TRM_TRITON": "0"}}
"""Ways to run our step: as it comes, without a CUDA graph, without the Triton kernels."""
UNFINISHED = 75
SHORTEST = 20.0  # seconds that a job must have


def jobs() -> list[str]:
    """What there is to do, the most important first."""
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

    def run(self, mixer: str) -> Any:
        """The training run's config."""
        from trm.study.schema import ModelConfig, RunConfig, TrainingConfig

        fields: dict[str, Any] = {"mixer": mixer, "position": "rope" if mixer == "attention" else "none"}
        if self.tiny:
            fields |= {"d_model": 32, "heads": 1, "h_cycles": 2, "l_cycles": 1, "puzzle_tokens": 1}
        precision = "float32" if self.tiny else "bfloat16"
        training = TrainingConfig(batch_size=self.batch, precision=precision, steps=65_104, ema=0.999)
        return RunConfig(model=ModelConfig(**fields), training=training)


def backend_of(variant: str) -> Any:
    """Our backend as `variant` says."""
    from trm.devices import open_backend

    for name in {name for settings in VARIANTS.values() for name in settings}:
        os.environ.pop(name, None)
    os.environ.update(VARIANTS[variant])
    return open_backend("auto")


def memory_of(call: Any, backend: Any, before: int) -> int:
    """Most bytes of the device in use while `call` runs, without what was there before the variant was made."""
    import torch

    if backend.device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def allocated(backend: Any) -> int:
    """Bytes of the device in use."""
    import torch

    return torch.cuda.memory_allocated() if backend.device.type == "cuda" else 0


def ceilings(sizes: Sizes) -> dict[str, Any]:
    """Rates of a large matrix product and of a copy."""
    import torch

    from benchmarks.step import matmul_ceiling

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
    dtype = torch.float32 if sizes.tiny else torch.bfloat16
    return {
        "device": backend.device_name(),
        "torch": torch.__version__,
        "flops_per_second": matmul_ceiling(dtype, backend),
        "bytes_per_second": 2 * count / best,
    }


def checks(sizes: Sizes) -> dict[str, Any]:
    """Every kernel and the whole network against float64."""
    import torch

    from trm.network.cuda import available

    if not available() or not torch.cuda.is_available():
        reason = "triton is not installed" if not available() else "there is no GPU"
        return {"skipped": f"{reason}: the kernels are checked by tests/network/cuda"}
    from benchmarks import gpu_checks
    from trm.study.schema import ModelConfig

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


def paired(ours: Any, theirs: Any, rounds: int, backend: Any) -> dict[str, Any]:
    """Median seconds of each and the ratio with its quartiles; three warm-ups of each first (ours: eight, capture)."""

    def seconds(call: Any, repeat: int) -> float:
        backend.synchronize()
        begun = time.perf_counter()
        for _ in range(repeat):
            call()
        backend.synchronize()
        return (time.perf_counter() - begun) / repeat

    seconds(ours, 8)
    seconds(theirs, 3)
    repeat = max(1, int(0.5 / max(1e-3, seconds(ours, 2))))
    times = [(seconds(ours, repeat), seconds(theirs, repeat)) for _ in range(rounds)]
    ratios = sorted(b / a for a, b in times)
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "ours_seconds": statistics.median(a for a, _ in times),
        "baseline_seconds": statistics.median(b for _, b in times),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [quarters[0], quarters[2]],
        "rounds": rounds,
    }


def baseline_of(kind: str, net: Any, tiny: bool) -> None:
    """Compile the baseline's module as `kind` says; a CPU's tiny run only traces (its compiler takes minutes)."""
    if kind != "eager":
        net.compiled("whole" if kind == "whole" else "stack", **({"backend": "eager"} if tiny else {}))


def train(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """A training step of ours against the baseline's, or against another way of ours."""
    import torch

    from benchmarks import step
    from trm.study.flops import step_flops

    run = sizes.run(mixer)
    backend = backend_of("ours")
    before = allocated(backend)
    ours, _ = step.our_step(run, sizes.cells, sizes.vocab, backend)
    our_memory = memory_of(lambda: [ours() for _ in range(8)], backend, before)
    middle = allocated(backend)
    if kind in VARIANTS:
        other = backend_of(kind)
        theirs, _ = step.our_step(run, sizes.cells, sizes.vocab, other)
    else:
        theirs, net = step.their_step(run, sizes.cells, sizes.vocab, backend)
        baseline_of(kind, net, sizes.tiny)
    their_memory = memory_of(lambda: [theirs() for _ in range(3)], backend, middle)
    found = paired(ours, theirs, sizes.rounds, backend)
    ceiling = step.matmul_ceiling(torch.float32 if sizes.tiny else torch.bfloat16, backend)
    rate = sizes.batch * step_flops(run.model, sizes.cells, sizes.vocab) / found["ours_seconds"]
    return found | {
        "rows_per_second": sizes.batch / found["ours_seconds"],
        "baseline_rows_per_second": sizes.batch / found["baseline_seconds"],
        "share": rate / ceiling,
        "ceiling": ceiling,
        "memory": our_memory,
        "baseline_memory": their_memory,
        "network": backend.network,
        "chosen": chosen(backend),
    }


def chosen(backend: Any) -> dict[str, Any]:
    """What the timing of the kernels' tiles came to, milliseconds."""
    if backend.network != "triton":
        return {}
    from trm.network.cuda.choice import SHARED

    return {f"{operation} {key}": times for (operation, key), times in SHARED.milliseconds.items()}


def evaluate(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """Batches of puzzles through all steps, ours against the baseline's, each at the best of some batch sizes."""
    import torch

    from benchmarks import step
    from trm.study.flops import forward_flops

    run, backend = sizes.run(mixer), backend_of("ours")
    _, state = step.our_step(run, sizes.cells, sizes.vocab, backend)
    _, net = step.their_step(run, sizes.cells, sizes.vocab, backend)
    baseline_of(kind, net, sizes.tiny)
    found, tried = {}, {}
    steps = sizes.evaluation_steps
    for rows in sizes.evaluation_rows:
        ours, _ = step.our_evaluation(state, backend, steps, rows)
        theirs = step.their_evaluation(net, backend, rows, sizes.cells, sizes.vocab, steps)
        tried[rows] = paired(ours, theirs, max(2, sizes.rounds // 3), backend)
    best = min(tried, key=lambda rows: tried[rows]["ours_seconds"] / rows)
    theirs_best = min(tried, key=lambda rows: tried[rows]["baseline_seconds"] / rows)
    found = tried[best]
    ceiling = step.matmul_ceiling(torch.float32 if sizes.tiny else torch.bfloat16, backend)
    rate, their_rate = best / found["ours_seconds"], theirs_best / tried[theirs_best]["baseline_seconds"]
    return found | {
        "ratio_best": rate / their_rate,
        "batch": best,
        "batches": {str(rows): value for rows, value in tried.items()},
        "steps": steps,
        "rows_per_second": rate,
        "baseline_rows_per_second": their_rate,
        "share": rate * steps * forward_flops(run.model, sizes.cells, sizes.vocab) / ceiling,
        "full_test_minutes": 422_786 / rate / 60,
    }


def confident(run: Path, dataset: Path, puzzles: int) -> dict[str, Any]:
    """A trained run: every step for every puzzle against stopping when confident, seconds and accuracy."""
    from trm.evaluation.evaluate import inference_network
    from trm.evaluation.policies import confident as stopping
    from trm.evaluation.policies import fixed
    from trm.evaluation.scores import Score
    from trm.study.schema import EvaluationConfig
    from trm.training.dataset import Dataset
    from trm.training.outputs import load_weights

    backend, trained = backend_of("ours"), load_weights(run)
    net, _ = inference_network(trained, EvaluationConfig(), backend)
    data = Dataset(dataset)
    test, depth = data.originals("test", backend, puzzles or None), trained.config.model.halt_max_steps

    def score() -> Score:
        return Score(backend.device, data.puzzles.ignore, None)

    seconds: dict[str, list[float]] = {"fixed": [], "confident": []}
    for _ in range(3):
        timed = fixed(net, test, (depth,), score, backend.synchronize).depths[depth]
        seconds["fixed"].append(timed.seconds)
        stopped, _ = stopping(net, test, depth, score(), backend.synchronize)
        seconds["confident"].append(stopped.seconds)
    whole, early = timed.score.result(backend), stopped.score.result(backend)
    return {
        "puzzles": len(test.inputs),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": statistics.median(a / b for a, b in zip(seconds["fixed"], seconds["confident"])),
        "exact": {"fixed": whole["exact_accuracy"], "confident": early["exact_accuracy"]},
        "mean_steps": early["mean_steps"],
    }


def one_job(name: str, args: argparse.Namespace) -> int:
    """Do a job in this process and write its result."""
    from trm.provenance import provenance

    sizes = Sizes(args.tiny)
    what, *rest = name.split("-")
    if what == "confident":
        result = confident(args.run, args.dataset, args.puzzles)
    else:
        result = {"ceilings": ceilings, "checks": checks, "train": train, "evaluate": evaluate}[what](
            sizes, *rest
        )
    document = {"job": name, "tiny": args.tiny, "result": result, "provenance": provenance()}
    part = args.out / f"{name}.json.part"
    part.write_text(json.dumps(document, indent=1))
    part.replace(args.out / f"{name}.json")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; kept between calls")
    parser.add_argument("--minutes", type=float, default=9.0, help="time of this call (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="JOB", help="these jobs; --list names all")
    parser.add_argument("--run", type=Path, help="a trained run, for what stopping when confident saves")
    parser.add_argument("--dataset", type=Path, help="its data set")
    parser.add_argument("--puzzles", type=int, default=0, help="of its test puzzles, so many (0: all)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script on a CPU")
    parser.add_argument("--list", action="store_true", help="name the jobs")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.job:
        return one_job(args.job, args)
    names = jobs() + (["confident"] if args.run else [])
    if unknown := set(args.only or ()) - set(names):
        parser.error(f"no job {sorted(unknown)[0]}; there are {', '.join(names)}")
    if args.list:
        print("\n".join(names))
        return 0
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
    results = gpu_report.collect(args.out, names)
    gpu_report.draw(results, args.out / "gpu.png")
    print(gpu_report.table(results), flush=True)
    failed += [name for name, found in results.items() if found["result"].get("failed")]
    if failed:
        print(f"failed: {', '.join(sorted(set(failed)))}")
    if left:
        print(f"left for the next call: {', '.join(left)}")
    return UNFINISHED if left else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
