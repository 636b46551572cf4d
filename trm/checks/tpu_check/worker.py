"""Traces and compiles one program; run by `trm.checks.tpu_check.check` in the environment envs/tpu.

    echo '{"config": {...}, "puzzles": [81, 11, 1, 0], "slice": "v4-64", "what": "train", "cache": "FOLDER"}' |
        python -m trm.checks.tpu_check.worker

torch_xla fixes the number of virtual devices when it starts, so each program needs its own process.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.study.schema import RunConfig
from trm.study.slices import Slice, parse_slice

if TYPE_CHECKING:
    from trm.study.tasks import Sizes


def environment(where: Slice) -> dict[str, str]:
    """Variables for torch_xla and libtpu: CPU devices to trace on, no search for a TPU or metadata server."""
    return {
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": str(where.chips),
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
    }


def set_libtpu_flags(where: Slice) -> None:
    """Set the options that torch_xla passes to libtpu on a host of the slice; call before libtpu is loaded."""
    import torch_xla
    from torch_xla._internal import tpu

    version = int(where.generation.libtpu[1])
    tpu.version = lambda: version  # it would ask the metadata server
    torch_xla._setup_libtpu_flags()


def trace_training(config: RunConfig, puzzles: Sizes, remat: bool | None) -> tuple[str, bool]:
    """StableHLO of a training step, and whether it rematerializes."""
    from trm.checks.tpu_check.tracing import rehearse

    backend, step = rehearse(config, puzzles, remat, evaluation=False)
    return [text for phase, text in backend.programs if phase == "step"][-1], bool(step.network.remat)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Trace and compile; for the fields see `trm.checks.tpu_check.check.Result` and `Program`."""
    where = parse_slice(request["slice"])
    os.environ.update(environment(where))
    set_libtpu_flags(where)
    from trm.study.tasks import Sizes

    config, cache = RunConfig.model_validate(request["config"]), Path(request["cache"])
    puzzles = Sizes(*request["puzzles"])
    if request["what"] == "run":
        from trm.checks.tpu_check.tracing import rehearse

        programs = rehearse(config, puzzles)[0].programs
        return {"programs": [{"phase": phase} | compiled(text, where, cache) for phase, text in programs]}
    module, remat = trace_training(config, puzzles, request.get("remat"))
    return {"remat": remat} | compiled(module, where, cache)


def compiled(module: str, where: Slice, cache: Path) -> dict[str, Any]:
    """Compile a program: whether it fits, and if so its memory, cycles and collectives."""
    from trm.checks.tpu_check import kernels
    from trm.checks.tpu_check.compiler import compile_for
    from trm.checks.tpu_check.hlo import read_program

    result = compile_for(module, where)
    answer: dict[str, Any] = {"fits": result.text is not None, "needs_gib": result.needs_gib}
    if result.text is None:
        return answer
    scheduled = kernels.count(module, cache)
    cycles = partial(kernels.call_cycles, scheduled=scheduled, chip=where.generation)
    program = read_program(result.text, lambda line: (kernel_name(line), cycles(line)))
    return answer | {
        "peak_gib": result.peak_bytes / 2**30,
        "cycles": program.cycles,
        "cycles_by_kind": program.by_kind,
        "collectives": {kind: asdict(item) for kind, item in program.collectives.items()},
    }


def kernel_name(line: str) -> str:
    from trm.backends.tpu.calls import NAMES
    from trm.checks.tpu_check.kernels import kernel_body

    return f"kernel {NAMES[kernel_body(line) or '']}"


def main() -> None:
    answer = run(json.load(sys.stdin))
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
