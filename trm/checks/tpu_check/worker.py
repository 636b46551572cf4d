"""Traces and compiles one program; started by `trm.checks.tpu_check.check` in the environment envs/tpu.

    echo '{"config": {...}, "puzzles": [81, 11, 1, 0], "slice": "v4-64", "what": "train"}' |
        python -m trm.checks.tpu_check.worker

The number of virtual devices is fixed when torch_xla starts, so each program needs its own process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.checks.tpu_check.starting import starting_seconds
from trm.study.schema import RunConfig
from trm.study.slices import Slice, evaluated, parse_slice

if TYPE_CHECKING:
    from torch import Tensor

    from trm.devices.xla import XlaBackend
    from trm.training.state import Puzzles


def environment(where: Slice) -> dict[str, str]:
    """What torch_xla and libtpu must find: CPU devices to trace on, and no search for a TPU or its metadata
    server."""
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


def as_torch_xla_starts_libtpu(where: Slice) -> None:
    """Give libtpu the options that torch_xla gives it on a host of the slice, before it is loaded."""
    import torch_xla
    from torch_xla._internal import tpu

    version = int(where.generation.libtpu[1])
    tpu.version = lambda: version  # it would ask the metadata server
    torch_xla._setup_libtpu_flags()


def trace_training(
    config: RunConfig, puzzles: Puzzles, where: Slice, remat: bool | None
) -> tuple[str, float, bool]:
    """StableHLO of one training step, the host's seconds to start it, and whether it rematerialises."""
    from trm.checks.tpu_check.rehearsal import rehearse

    backend, network = rehearse(config, puzzles, remat, evaluation=False)
    module = [text for phase, text in backend.programs if phase == "step"][-1]
    sizes = config.training.batch_size, puzzles.seq_len, puzzles.vocab
    seconds = starting_seconds(*backend.step_sizes, sizes, where, backend)
    return module, seconds, bool(network.remat)


def trace_evaluation(
    config: RunConfig, puzzles: Puzzles, where: Slice, backend: XlaBackend
) -> tuple[str, float, int]:
    """StableHLO of one supervision step of evaluation, seconds of tracing (the shortest of some), and rows a device,
    as evaluation takes."""
    import torch

    from trm.checks.tpu_check.rehearsal import traced_as_on_tpu
    from trm.network.inference import InferenceNetwork, inference_batch
    from trm.network.parameters import Layout, architecture
    from trm.network.tpu.network import XlaRounds

    model = config.model
    layout = Layout.of(model, puzzles.seq_len, puzzles.vocab)
    arch = architecture(model, backend.precision(config.training.precision).forward)
    weights = layout.views(backend.place(torch.ones(layout.size)))
    table = torch.zeros(puzzles.num_ids, model.d_model) if model.puzzle_tokens else None
    start = backend.place(torch.zeros(model.d_model))
    table = None if table is None else backend.place(table)
    with traced_as_on_tpu():  # the kernels are chosen here
        network = InferenceNetwork(weights, start, start, table, arch, model.h_cycles, model.l_cycles, "xla")
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
    """The pending computation of the tensors as text."""
    import torch_xla

    text: bytes = torch_xla._XLAC._get_stablehlo(outputs, str(backend.device), [], False)
    return text.decode()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Trace, compile, read. For the answer's fields see `trm.checks.tpu_check.check.Result` and `Program`."""
    where = parse_slice(request["slice"])
    os.environ.update(environment(where))
    as_torch_xla_starts_libtpu(where)
    from trm.training.state import Puzzles

    config, puzzles, cache = (
        RunConfig.model_validate(request["config"]),
        Puzzles(*request["puzzles"]),
        Path(request["cache"]),
    )
    if request["what"] == "run":
        from trm.checks.tpu_check.rehearsal import rehearse

        programs = rehearse(config, puzzles)[0].programs
        return {"programs": [{"phase": phase} | compiled(text, where, cache) for phase, text in programs]}
    remat, rows = False, config.training.batch_size // where.chips
    if request["what"] == "train":
        module, starting, remat = trace_training(config, puzzles, where, request.get("remat"))
    else:
        from trm.devices.xla import XlaBackend

        module, starting, rows = trace_evaluation(config, puzzles, where, XlaBackend())
    if request.get("stablehlo"):
        Path(request["stablehlo"]).write_text(module)
    answer = {"remat": remat, "rows_per_chip": rows, "host_ms": round(1000 * starting, 2)}
    return answer | compiled(module, where, cache, request.get("hlo"))


def compiled(module: str, where: Slice, cache: Path, hlo: str | None = None) -> dict[str, Any]:
    """What libtpu makes of a program: whether it fits, and then its memory, cycles and collectives."""
    from trm.checks.tpu_check import kernels
    from trm.checks.tpu_check.compiler import compile_for
    from trm.checks.tpu_check.hlo import read_program

    started = time.perf_counter()
    found = compile_for(module, where)
    answer: dict[str, Any] = {"fits": found.text is not None, "needs_gib": found.needs_gib}
    answer["compile_seconds"] = round(time.perf_counter() - started, 2)
    if found.text is None:
        return answer
    scheduled = kernels.count(module, cache)
    program = read_program(found.text, lambda line: (kernel_name(line), kernels.call_cycles(line, scheduled)))
    if hlo:
        Path(hlo).write_text(found.text)
    return answer | {
        "peak_gib": found.peak_bytes / 2**30,
        "argument_gib": found.argument_bytes / 2**30,
        "compiled_flops": found.flops,
        "cycles": program.cycles,
        "cycles_by_kind": program.by_kind,
        "collectives": {kind: asdict(item) for kind, item in program.collectives.items()},
    }


def kernel_name(line: str) -> str:
    """What a kernel of the traced step is called."""
    from trm.checks.tpu_check.kernels import kernel_body
    from trm.network.tpu.calls import BODIES

    return f"kernel {BODIES[kernel_body(line) or '']}"


def main() -> None:
    answer = run(json.load(sys.stdin))
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
