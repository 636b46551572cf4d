"""One command for a GPU, in about ten minutes: how fast we train and evaluate there, as one table.

    python -m benchmarks.gpu [--json FILE]     # FILE is what to send
    python -m benchmarks.gpu --tiny            # the same script on a CPU, in seconds

The recipe is the paper's (bfloat16, 768 rows) on random inputs. Each row takes turns with a baseline: `compiled` and
`eager` are benchmarks/baseline.py, plain PyTorch written as the paper's equations, with and without torch.compile;
`uncaptured` is our own step without CUDA graphs. `of_ceiling` is relative to the matrix product rate measured in the
same process. A fast path earns its lines at 1.25 times the simpler one. What does not run says so, and the other rows
go on.
"""

from __future__ import annotations

import os
import time
import traceback
from typing import Any

import torch

from benchmarks import step
from benchmarks.frame import cell, finish, in_turns, parser
from trm.backends.base import Backend
from trm.backends.registry import open_backend
from trm.study.flops import forward_flops, step_flops
from trm.study.schema import ModelConfig, RunConfig, TrainingConfig
from trm.training.programs import GRAPH_VARIABLE

KINDS = (("train", "compiled"), ("evaluate", "compiled"), ("train", "eager"), ("train", "uncaptured"))
"""The most important first."""
CASES = [(mixer, what, against) for what, against in KINDS for mixer in ("mlp", "attention")]
CELLS, VOCAB = 81, 11


def run_of(mixer: str, tiny: bool) -> RunConfig:
    """The config of the training run."""
    fields: dict[str, Any] = {"mixer": mixer, "position": "rope" if mixer == "attention" else "none"}
    if tiny:
        fields |= {"d_model": 32, "heads": 1, "h_cycles": 2, "l_cycles": 1, "puzzle_tokens": 1}
    rows, precision = (4, "float32") if tiny else (768, "bfloat16")
    training = TrainingConfig(batch_size=rows, precision=precision, steps=65_104, ema=0.999)
    return RunConfig(model=ModelConfig(**fields), training=training)


def training(run: RunConfig, against: str, backend: Backend, tiny: bool) -> tuple[dict[str, Any], int, float]:
    """Our step and the other one, rows of each and FLOPs of a row."""
    ours, _ = step.training_step(run, CELLS, VOCAB, backend)
    if against == "uncaptured":
        os.environ[GRAPH_VARIABLE] = "0"
        theirs, _ = step.training_step(run, CELLS, VOCAB, backend)
        del os.environ[GRAPH_VARIABLE]
    else:
        theirs, _ = step.their_step(run, CELLS, VOCAB, backend, against, {"backend": "eager"} if tiny else {})
    calls = {"ours": ours, against: theirs}
    return calls, run.training.batch_size, step_flops(run.model, CELLS, VOCAB)


def evaluation(
    run: RunConfig, against: str, backend: Backend, tiny: bool
) -> tuple[dict[str, Any], int, float]:
    """The same for a batch of puzzles through all supervision steps."""
    rows, steps = (4, 2) if tiny else (1536, 16)
    _, state = step.training_step(run, CELLS, VOCAB, backend)
    _, net = step.their_step(run, CELLS, VOCAB, backend, against, {"backend": "eager"} if tiny else {})
    ours, _ = step.our_evaluation(state, backend, steps, rows)
    theirs = step.their_evaluation(net, backend, rows, CELLS, VOCAB, steps)
    return {"ours": ours, against: theirs}, rows, steps * forward_flops(run.model, CELLS, VOCAB)


def measure(mixer: str, what: str, against: str, backend: Backend, tiny: bool) -> dict[str, Any]:
    """A row of the table."""
    torch.compiler.reset()
    run, rounds = run_of(mixer, tiny), 2 if tiny else 9
    prepare = training if what == "train" else evaluation
    calls, rows, flops = prepare(run, against, backend, tiny)
    found = in_turns(calls, rounds, backend)
    ours, other = found["ours"]["seconds"], found[against]
    ceiling = step.matmul_ceiling(run.training.precision, backend)
    rates = {"rows/s": rows / ours, "of_ceiling": rows * flops / ours / ceiling, "ceiling": ceiling}
    return rates | {"ratio": other["ratio"], "ratio_quartiles": other["ratio_quartiles"]}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--tiny", action="store_true", help="tiny sizes, also on a CPU")
    options.add_argument(
        "--minutes", type=float, default=10.0, help="begin no row later (default: %(default)s)"
    )
    args = options.parse_args()
    backend = open_backend("auto" if not args.tiny else "cpu")
    deadline = time.monotonic() + 60 * args.minutes
    rows: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for mixer, what, against in CASES:
        row: dict[str, Any] = {"case": f"{what}-{mixer}", "against": against}
        name = cell(row)
        if time.monotonic() > deadline:
            problems[name] = "no time left"
            continue
        try:
            rows.append(row | measure(mixer, what, against, backend, args.tiny))
            print(cell(rows[-1]), flush=True)
        except (
            Exception
        ) as error:  # the compiler's, the driver's, or out of memory: the other rows still count
            problems[name] = (str(error).splitlines() or [type(error).__name__])[0]
            traceback.print_exc()
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    finish(rows, args.json, device=backend.device_name(), torch=torch.__version__, problems=problems)
    return sum(problem != "no time left" for problem in problems.values())


if __name__ == "__main__":
    raise SystemExit(main())
