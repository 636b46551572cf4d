"""One command for a GPU, in ten minutes: check every kernel, time our step against plain PyTorch, resume a killed run.

    python -m benchmarks.gpu                              # writes benchmarks/out/gpu/gpu.json after every job
    python -m benchmarks.gpu --tiny --out /tmp/tiny       # the same script on a CPU, in a minute or two

It needs torch 2.9 or newer with triton, numpy and pydantic; the run that is killed also safetensors and numba. Jobs run
in the order of their worth, each in a process of its own, until the budget (`--minutes`) is spent; what is finished
(OUT/<job>.json) is not repeated, so that the same command goes on where it stopped. While the checks run, another
process compiles what is timed later. Exit code 1: a job or a check failed. Ratios are medians over paired rounds (ours
and the baseline take turns); `share` is relative to the matrix product rate measured in the same process. The recipe is
the paper's (bfloat16, batch 768) on random inputs. `eager` and `compiled` are benchmarks/baseline.py, plain PyTorch
written as the paper's equations, without and with torch.compile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import step
from benchmarks.frame import TRM, best_seconds, cell, in_turns
from trm.backends.launch import run_workers
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
    ours = [f"train-{mixer}-{kind}" for kind in ("compiled", "eager") for mixer in MIXERS]
    evaluations = [f"evaluate-{mixer}-compiled" for mixer in MIXERS]
    variants = [f"train-{mixer}-{kind}" for kind in ("uncaptured", "plain", "whole") for mixer in MIXERS]
    return ["checks", "ceilings", *ours, *evaluations, *variants[:2], "workers", "resume", *variants[2:]]


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
    from trm.backends.cuda.checks import Shapes

    device = torch.device("cuda")
    parts = [gpu_checks.kernels(Shapes(), dtype, device) for dtype in (torch.float16, torch.bfloat16)]
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
    ours, _ = step.training_step(run, sizes.cells, sizes.vocab, backend)
    memory = memory_of(ours, 8, backend, before)
    before = allocated()
    if kind in VARIANTS:
        theirs, _ = step.training_step(run, sizes.cells, sizes.vocab, backend_of(kind))
    else:
        theirs, _ = step.their_step(run, sizes.cells, sizes.vocab, backend, kind, sizes.compiler)
    baseline_memory = memory_of(theirs, 3, backend, before)
    flops = step_flops(run.model, sizes.cells, sizes.vocab)
    found = compare(sizes, backend, {"ours": ours, "baseline": theirs}, sizes.rounds, sizes.batch, flops)
    return found | {"memory": memory, "baseline_memory": baseline_memory, "network": backend.network}


def evaluate(sizes: Sizes, mixer: str, kind: str) -> dict[str, Any]:
    """Batches of puzzles through all supervision steps, ours and the baseline's, each at its best batch size."""
    run, backend = sizes.run(mixer), backend_of("ours")
    _, state = step.training_step(run, sizes.cells, sizes.vocab, backend)
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


def warm(sizes: Sizes) -> dict[str, Any]:
    """Compile once what is timed later; the caches on disk are the result."""
    backend = backend_of("ours")
    for mixer in MIXERS:
        run = sizes.run(mixer)
        ours, state = step.training_step(run, sizes.cells, sizes.vocab, backend)
        theirs, net = step.their_step(run, sizes.cells, sizes.vocab, backend, "compiled", sizes.compiler)
        ours()
        theirs()
        for rows in sizes.evaluation_rows:
            step.our_evaluation(state, backend, 1, rows)[0]()
            step.their_evaluation(net, backend, rows, sizes.cells, sizes.vocab, 1)()
    return {}


def workers(sizes: Sizes) -> dict[str, Any]:
    """Two processes with a batch each, on two GPUs (tiny: on the CPU)."""
    if not sizes.tiny and torch.cuda.device_count() < 2:
        return {"skipped": "there are not two GPUs"}
    if "RANK" not in os.environ:
        if code := run_workers(2, [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]]):
            raise SystemExit(code)
        return {}
    run, backend = sizes.run("mlp"), backend_of("ours")
    training = run.training.model_copy(update={"batch_size": 2 * sizes.batch})
    call, _ = step.training_step(
        run.model_copy(update={"training": training}), sizes.cells, sizes.vocab, backend
    )
    for _ in range(8):
        call()
    seconds = best_seconds(call, backend)
    backend.close()
    return {"workers": 2, "rows_per_second": 2 * sizes.batch / seconds, "device": backend.device_name()}


def resume(sizes: Sizes, folder: Path) -> dict[str, Any]:
    """A real run that is killed after its first checkpoint and started again."""
    if missing := [name for name in ("safetensors", "numba") if not find_spec(name)]:
        return {"skipped": f"{' and '.join(missing)} cannot be imported"}
    shutil.rmtree(folder, ignore_errors=True)
    puzzles = {"train_puzzles": 100, "validation_puzzles": 16, "test_puzzles": 16, "augmentations": 10}
    run = sizes.run("mlp").model_dump(mode="json", exclude_defaults=True)
    run |= {"data": {"source": "generate", **puzzles}}
    run["training"]["steps"] = 20 if sizes.tiny else 300
    config, source, data = (folder / name for name in ("run.json", "source", "data"))
    write_text(config, dump(run))
    made = ("--config", str(config))
    subprocess.run([*TRM, "data", "source", *made, "--out", str(source)], check=True)
    subprocess.run([*TRM, "data", "build", *made, "--source", str(source), "--out", str(data)], check=True)
    often = json.dumps({"checkpoint_minutes": 1e-4, "log_every": 10, "evals": 1})
    words = [
        "--dataset",
        data,
        "--out",
        folder / "run",
        "--checkpoints",
        folder / "checkpoints",
        "--runtime",
        often,
    ]
    command = [*TRM, "train", *made, *map(str, words)]
    with subprocess.Popen(command) as first:
        while first.poll() is None and not list(folder.glob("checkpoints/step-*/manifest.json")):
            time.sleep(0.01)
        first.kill()
    subprocess.run(command, check=True)
    found = read_json(folder / "run/training.json")
    kept = ("resumes", "steps", "wall_seconds", "setup_seconds", "device_name", "precision")
    return {key: found[key] for key in kept} | {"failed": found["resumes"] < 1}


def line(name: str, found: dict[str, Any]) -> str:
    """One job's result, for the console."""
    shown = {key: value for key, value in found.items() if key not in ("checks", "batches")}
    if (target := TARGETS.get(name.rpartition("-")[0])) and name.endswith(("compiled", "whole")):
        shown["target"] = target
    return f"{name:28} {cell(shown)}"


def run_job(args: argparse.Namespace) -> None:
    """Run `args.job` in this process and write OUT/<job>.json."""
    what, *rest = args.job.split("-")
    kinds = {"ceilings": ceilings, "checks": checks, "train": train, "evaluate": evaluate, "warm": warm}
    if what == "resume":
        result = resume(Sizes(args.tiny), args.out / "resume")
    else:
        result = (kinds | {"workers": workers})[what](Sizes(args.tiny), *rest)
    if result and os.environ.get("RANK", "0") == "0":
        document = {"job": args.job, "tiny": args.tiny, "result": result}
        write_text(args.out / f"{args.job}.json", dump(document | {"provenance": provenance()}))


def start(name: str) -> subprocess.Popen[bytes]:
    """Start a job with a process group of its own: compilers start further processes."""
    command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--job", name]
    return subprocess.Popen(command, start_new_session=True)


def finish(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Wait for a job, at most until the deadline: `done`, `FAILED` or `out of time`."""
    try:
        return "FAILED" if process.wait(timeout=max(0.0, deadline - time.monotonic())) else "done"
    except subprocess.TimeoutExpired:
        return "out of time"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_all(todo: list[str], args: argparse.Namespace) -> dict[str, str]:
    """Run jobs until the budget is spent; how each ended."""
    deadline = time.monotonic() + 60 * args.minutes
    ended = {}
    warming = start("warm") if todo[:1] == ["checks"] and todo[1:] else None
    try:
        for name in todo:
            if time.monotonic() > deadline:
                ended[name] = "out of time"
                continue
            if warming and name != "checks":
                # it would disturb what is timed; one that hangs leaves most of the budget
                finish(warming, min(deadline, time.monotonic() + 60 * args.minutes / 4))
                warming = None
            print(f"== {name}", flush=True)
            began = time.monotonic()
            ended[name] = finish(start(name), deadline)
            print(f"== {name}: {ended[name]} in {time.monotonic() - began:.0f} s", flush=True)
            collect(args.out)
    finally:
        if warming:
            finish(warming, 0)
    return ended


def collect(out: Path) -> dict[str, Any]:
    """Write OUT/gpu.json from the finished jobs."""
    paths = {name: out / f"{name}.json" for name in jobs()}
    results = {name: read_json(path) for name, path in paths.items() if path.exists()}
    write_text(out / "gpu.json", dump(results))
    return results


def main() -> int:
    """Run the jobs that are not finished and print all results."""
    names = jobs()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    folder = Path("benchmarks/out/gpu")
    parser.add_argument(
        "--out", type=Path, default=folder, help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="budget of this call (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="JOB", choices=names, help=", ".join(names))
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script on a CPU")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.job:
        run_job(args)
        return 0
    ended = run_all([name for name in args.only or names if not (args.out / f"{name}.json").exists()], args)
    results = collect(args.out)
    print("\n".join(line(name, document["result"]) for name, document in results.items()))
    failed = {name for name, how in ended.items() if how == "FAILED"}
    failed |= {name for name, found in results.items() if found["result"].get("failed")}
    late = [name for name, how in ended.items() if how == "out of time"]
    for what, these in (("failed", sorted(failed)), ("no time for", late)):
        if these:
            print(f"{what}: {', '.join(these)}")
    return int(bool(failed))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # which ends the jobs, too
    sys.exit(main())
