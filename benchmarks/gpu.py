"""One command for a GPU, in four minutes with a cold cache: how fast we train and evaluate.

    python -m benchmarks.gpu [--json FILE]     # FILE is what to send
    python -m benchmarks.gpu --tiny            # the same script on a CPU, in seconds

The recipe is the paper's (bfloat16, 768 rows) on random inputs: whole steps in turns with `compiled` and `eager`, the
paper's equations in plain PyTorch (tests/model/equations.py) with and without torch.compile, and with `uncaptured`, our
own step without CUDA graphs. `of_roofline`: the time that the step would take if each product ran at the rate of a
large one and each other kernel at the rate of a copy, both measured in the same process, over the time it takes. What
does not run is named with its error, and the rest goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import step
from benchmarks.frame import best_seconds, finish, in_turns, parser
from trm.backends.base import Backend
from trm.backends.registry import open_backend
from trm.study.flops import inner_width, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig
from trm.training.programs import GRAPH_VARIABLE

CELLS, VOCAB = 81, 11
CASES = [(what, mixer) for what in ("train", "evaluate") for mixer in ("mlp", "attention")]
"""The most important first."""
RIVALS = {"train": ("compiled", "eager", "uncaptured"), "evaluate": ("compiled", "eager")}


def run_of(mixer: str, tiny: bool) -> RunConfig:
    """The config of the training run."""
    fields: dict[str, Any] = {"mixer": mixer, "position": "rope" if mixer == "attention" else "none"}
    if tiny:
        fields |= {"d_model": 32, "heads": 1, "h_cycles": 2, "l_cycles": 1, "puzzle_tokens": 1}
    rows, precision = (4, "float32") if tiny else (768, "bfloat16")
    training = TrainingConfig(batch_size=rows, precision=precision, steps=65_104, ema=0.999)
    return RunConfig(model=ModelConfig(**fields), training=training)


def kernels(model: ModelConfig, rows: int) -> list[tuple[float, float]]:
    """FLOPs, and elements read and written, of each kernel of a block's forward pass on `rows` rows."""
    D, L = model.d_model, CELLS + model.puzzle_tokens
    inner, C, state = inner_width(model, L), inner_width(model, D), L * rows * D
    tokens, channels = inner * rows * D, C * rows * L
    norm, gate = (0.0, 3.0 * state), (0.0, 3.0 * channels)
    if model.mixer == "mlp":
        mixing = [
            (4.0 * L * tokens, state + 2.0 * tokens),
            (0.0, 3.0 * tokens),
            (2.0 * L * tokens, tokens + state),
        ]
    else:
        rope = [(0.0, 4.0 * state)] if model.position == "rope" else []
        mixing = [
            (6.0 * D * state, 4.0 * state),
            *rope,
            (4.0 * L * state, 4.0 * state),
            (2.0 * D * state, 2.0 * state),
        ]
    return [
        *mixing,
        norm,
        (4.0 * D * channels, state + 2.0 * channels),
        gate,
        (2.0 * D * channels, channels + state),
        norm,
    ]


def roofline_seconds(
    model: ModelConfig, rows: int, steps: int, train: bool, rates: tuple[float, float]
) -> float:
    """Of `steps` supervision steps; backward takes twice a forward pass. `rates`: FLOP/s, elements/s."""
    block = sum(max(flops / rates[0], moved / rates[1]) for flops, moved in kernels(model, rows))
    uses = model.layers * (model.l_cycles + 1)
    return steps * block * uses * (model.h_cycles + 2 * train)


def copy_rate(tiny: bool, backend: Backend) -> float:
    """Elements of two bytes that a copy reads and writes per second."""
    source = torch.zeros(1 << (16 if tiny else 29), dtype=torch.bfloat16, device=backend.device)
    return 2 * len(source) / best_seconds(source.clone, backend)


def calls_of(
    what: str, mixer: str, backend: Backend, tiny: bool
) -> tuple[dict[str, Callable[[], Any]], int, int]:
    """Ours and the rivals; rows and supervision steps of a call."""
    run, options = run_of(mixer, tiny), {"backend": "eager"} if tiny else {}
    ours, state = step.training_step(run, CELLS, VOCAB, backend)
    theirs = {
        name: step.their_step(run, CELLS, VOCAB, backend, name, options) for name in ("compiled", "eager")
    }
    if what == "evaluate":
        rows, steps = (4, 2) if tiny else (1536, 4)
        calls = {"ours": step.our_evaluation(state, backend, steps, rows)[0]}
        for name, (_, net) in theirs.items():
            calls[name] = step.their_evaluation(net, backend, rows, CELLS, VOCAB, steps)
        return calls, rows, steps
    os.environ[GRAPH_VARIABLE] = "0"
    uncaptured, _ = step.training_step(run, CELLS, VOCAB, backend)
    del os.environ[GRAPH_VARIABLE]
    calls = {"ours": ours, **{name: call for name, (call, _) in theirs.items()}, "uncaptured": uncaptured}
    return calls, run.training.batch_size, 1


def measure(
    what: str, mixer: str, backend: Backend, tiny: bool, rates: tuple[float, float]
) -> dict[str, Any]:
    """A row of the second table: ratios are the rivals' seconds over ours."""
    torch.compiler.reset()
    calls, rows, steps = calls_of(what, mixer, backend, tiny)
    found = in_turns(calls, 2 if tiny else 5, backend)
    ours, model = found["ours"]["seconds"], run_of(mixer, tiny).model
    row = {"case": f"{what}-{mixer}", "rows/s": rows / ours, "TFLOP/s": None}
    if what == "train":
        row["TFLOP/s"] = rows * step_flops(model, CELLS, VOCAB) / ours / 1e12
    row["of_roofline"] = roofline_seconds(model, rows, steps, what == "train", rates) / ours
    for name in RIVALS["train"]:
        other = found.get(name)
        row[name] = other and other["ratio"]
        row[f"{name} quartiles"] = other and other["ratio_quartiles"]
    return row


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--tiny", action="store_true", help="tiny sizes, also on a CPU")
    options.add_argument(
        "--seconds", type=float, default=200, help="begin no row later (default: %(default)s)"
    )
    args = options.parse_args()
    backend = open_backend("auto" if not args.tiny else "cpu")
    began, problems, rows = time.monotonic(), {}, []
    rates = (
        step.matmul_ceiling(run_of("mlp", args.tiny).training.precision, backend),
        copy_rate(args.tiny, backend),
    )
    for what, mixer in CASES:
        name = f"{what}-{mixer}"
        if time.monotonic() - began > args.seconds:
            problems[name] = "no time left"
            continue
        try:
            rows.append(measure(what, mixer, backend, args.tiny, rates))
            print(f"{name}, {time.monotonic() - began:.0f} s: {rows[-1]['rows/s']:.0f} rows/s", flush=True)
        except (
            Exception
        ) as error:  # the compiler's, the driver's, or out of memory: the other rows still count
            problems[name] = (str(error).splitlines() or [type(error).__name__])[0]
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    more = {"ceiling": rates[0], "elements per second": rates[1], "problems": problems}
    finish(rows, args.json, device=backend.device_name(), torch=torch.__version__, **more)
    return sum(problem != "no time left" for problem in problems.values())


if __name__ == "__main__":
    raise SystemExit(main())
