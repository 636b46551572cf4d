"""Traces and compiles one program; run by `trm.checks.tpu_check.check` in the environment envs/tpu.

    echo '{"config": {...}, "puzzles": [81, 11, 1, 0], "slice": "v4-64", "what": "train"}' |
        python -m trm.checks.tpu_check.worker

torch_xla fixes the number of virtual devices when it starts, so each program needs its own process.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
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

    config = RunConfig.model_validate(request["config"])
    puzzles = Sizes(*request["puzzles"])
    if request["what"] == "run":
        from trm.checks.tpu_check.tracing import rehearse

        programs = rehearse(config, puzzles)[0].programs
        return {"programs": [{"phase": phase} | compiled(text, where) for phase, text in programs]}
    module, remat = trace_training(config, puzzles, request.get("remat"))
    return {"remat": remat} | compiled(module, where)


def compiled(module: str, where: Slice) -> dict[str, Any]:
    """Compile a program: the memory of a chip that it takes, or would need, and how often it sends, by kind."""
    from trm.checks.tpu_check.compiler import compile_for

    program = compile_for(module, where)
    sent = re.findall(r" ([a-z-]+-(?:reduce|gather|scatter|all|permute))(?:-start)?\(", program.text)
    return {"fits": program.fits, "gib": program.gib, "collectives": dict(Counter(sent))}


def main() -> None:
    answer = run(json.load(sys.stdin))
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
