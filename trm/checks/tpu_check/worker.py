"""Traces and compiles one program; run by `trm.checks.tpu_check.check` in the environment envs/tpu.

    echo '{"config": {...}, "puzzles": [81, 11, 1, 0], "slice": "v4-64", "what": "train", "cache": "FOLDER"}' |
        python -m trm.checks.tpu_check.worker

torch_xla fixes the number of virtual devices when it starts, so each program needs its own process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.checks.tpu_check.launching import launch_seconds
from trm.study.schema import RunConfig
from trm.study.slices import Slice, evaluated, parse_slice

if TYPE_CHECKING:
    from torch import Tensor

    from trm.backends.tpu.device import XlaBackend
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


def trace_training(
    config: RunConfig, puzzles: Sizes, where: Slice, remat: bool | None
) -> tuple[str, float, bool]:
    """StableHLO of a training step, the host's seconds to launch it, and whether it rematerializes."""
    from trm.checks.tpu_check.tracing import rehearse

    backend, step = rehearse(config, puzzles, remat, evaluation=False)
    module = [text for phase, text in backend.programs if phase == "step"][-1]
    sizes = config.training.batch_size, puzzles.seq_len, puzzles.vocab
    seconds = launch_seconds(*step.sizes, sizes, where, backend)
    return module, seconds, bool(step.network.remat)


def trace_evaluation(
    config: RunConfig, puzzles: Sizes, where: Slice, backend: XlaBackend
) -> tuple[str, float, int]:
    """StableHLO of an evaluation's supervision step, the shortest tracing time in seconds, and evaluation's rows per
    device."""
    import torch

    from trm.backends.registry import load_implementation
    from trm.backends.tpu.network import XlaRounds
    from trm.checks.tpu_check.tracing import traced_as_on_tpu
    from trm.model.inference import InferenceNetwork, inference_batch
    from trm.model.parameters import Layout, architecture

    model = config.model
    layout = Layout.of(model, puzzles.seq_len, puzzles.vocab)
    arch = architecture(model, backend.precision(config.training.precision).forward)
    weights = layout.views(backend.place(torch.ones(layout.size)))
    table = torch.zeros(puzzles.num_ids, model.d_model) if model.puzzle_tokens else None
    start = backend.place(torch.zeros(model.d_model))
    table = None if table is None else backend.place(table)
    with traced_as_on_tpu():  # this chooses the kernels
        network = InferenceNetwork(
            weights, start, start, table, arch, model.h_cycles, model.l_cycles, load_implementation("xla")
        )
    assert isinstance(network.rounds, XlaRounds)
    network.rounds.start = False
    length = puzzles.seq_len + model.puzzle_tokens
    rows = inference_batch(length, model.d_model, backend.device)
    if count := evaluated(config, where):
        rows = min(rows, 2 * -(-count // (2 * backend.devices)))
    shape = (length, rows * backend.devices, model.d_model)
    z_H, z_L, x = (backend.place_rows(torch.ones(shape, dtype=arch.dtype), 1) for _ in range(3))
    backend.synchronize()
    with torch.no_grad(), traced_as_on_tpu():
        module = stablehlo(list(network.step(z_H, z_L, x)), backend)
        times = []
        for _ in range(5):
            started = time.perf_counter()
            network.step(z_H, z_L, x)
            times.append(time.perf_counter() - started)
    return module, min(times), rows


def stablehlo(outputs: list[Tensor], backend: XlaBackend) -> str:
    """The pending computation of the tensors."""
    import torch_xla

    text: bytes = torch_xla._XLAC._get_stablehlo(outputs, str(backend.device), [], False)
    return text.decode()


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
    remat, rows = False, config.training.batch_size // where.chips
    if request["what"] == "train":
        module, starting, remat = trace_training(config, puzzles, where, request.get("remat"))
    else:
        from trm.backends.tpu.device import XlaBackend

        module, starting, rows = trace_evaluation(config, puzzles, where, XlaBackend())
    answer = {"remat": remat, "rows_per_chip": rows, "host_ms": round(1000 * starting, 2)}
    return answer | compiled(module, where, cache)


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
