"""Traces and compiles one program; started by `trm.checks.tpu_check.check` in the environment envs/tpu.

    echo '{"config": {...}, "puzzles": [81, 11, 1, 0], "slice": "v4-64", "what": "train"}' |
        python -m trm.checks.tpu_check.worker

The number of virtual devices is fixed when torch_xla starts, so each program has a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trm.checks.tpu_check.starting import host_batch, starting_seconds
from trm.study.schema import RunConfig
from trm.study.slices import Slice, evaluated, parse_slice


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


def trace_training(
    config: RunConfig, puzzles: Any, where: Slice, backend: Any, remat: bool | None
) -> tuple[str, float, bool, bool]:
    """StableHLO of one training step, the host's seconds to start it, and whether it rematerialises and uses the
    kernels."""
    import torch
    import torch_xla

    from trm.devices.base import switch
    from trm.network.tpu.network import KERNELS_VARIABLE
    from trm.training.state import TrainState, flatten_carry
    from trm.training.step import Batch, Originals, TrainStep

    model, training = config.model, config.training
    state = TrainState(config, puzzles, backend.precision(training.precision), backend)
    count, seq_len = 1000, puzzles.seq_len
    cells = torch.ones(count, seq_len, dtype=torch.uint8)
    originals = Originals(
        backend.place(cells),
        backend.place(cells.clone()),
        backend.place(torch.zeros(count, dtype=torch.int32)),
    )
    step = TrainStep(state, originals, backend)
    if remat is not None:
        step.network.remat = remat
    step.network.kernels = switch(KERNELS_VARIABLE) != "0"  # traced on a CPU, compiled for TPUs
    sizes = training.batch_size, seq_len, puzzles.vocab
    batch = Batch(*(backend.place_rows(tensor, 0) for tensor in host_batch(*sizes)))
    backend.synchronize()
    step(batch, model.h_cycles, model.l_cycles)
    changed = [*state.shared_tensors().values(), state.reduce]
    changed += [tensor for carry in state.carries for tensor in flatten_carry(carry).values()]
    module = stablehlo(changed, backend)
    arguments = len(torch_xla._XLAC._get_tensors_xla_device_data_node(changed)[0])
    seconds = starting_seconds(arguments, len(changed), sizes, where, backend)
    return module, seconds, bool(step.network.remat), bool(step.network.by_kernels)


def trace_evaluation(config: RunConfig, puzzles: Any, where: Slice, backend: Any) -> tuple[str, float, int]:
    """StableHLO of one supervision step of evaluation, seconds of tracing (the shortest of some), and rows a device,
    as evaluation takes."""
    import torch

    from trm.devices.base import switch
    from trm.network.inference import InferenceNetwork, inference_batch
    from trm.network.parameters import Layout, architecture
    from trm.network.tpu.network import KERNELS_VARIABLE

    model = config.model
    layout = Layout.of(model, puzzles.seq_len, puzzles.vocab)
    arch = architecture(model, backend.precision(config.training.precision).forward)
    weights = layout.views(backend.place(torch.ones(layout.size)))
    table = torch.zeros(puzzles.num_ids, model.d_model) if model.puzzle_tokens else None
    start = backend.place(torch.zeros(model.d_model))
    network = InferenceNetwork(
        weights,
        start,
        start,
        None if table is None else backend.place(table),
        arch,
        model.h_cycles,
        model.l_cycles,
        "xla",
    )
    network.rounds.kernels, network.rounds.start = switch(KERNELS_VARIABLE) != "0", False
    length = puzzles.seq_len + model.puzzle_tokens
    rows = inference_batch(length, model.d_model, backend.device)
    if count := evaluated(config, where):
        rows = min(rows, 2 * -(-count // (2 * backend.devices)))
    shape = (length, rows * backend.devices, model.d_model)
    z_H, z_L, x = (backend.place_rows(torch.ones(shape, dtype=arch.dtype), 1) for _ in range(3))
    backend.synchronize()
    with torch.no_grad():
        module = stablehlo(list(network.step(z_H, z_L, x)), backend)
        times = []
        for _ in range(5):
            started = time.perf_counter()
            network.step(z_H, z_L, x)
            times.append(time.perf_counter() - started)
    return module, min(times), rows


def stablehlo(outputs: list[Any], backend: Any) -> str:
    """The pending computation of the tensors as text."""
    import torch_xla

    return torch_xla._XLAC._get_stablehlo(outputs, str(backend.device), [], False).decode()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Trace, compile, read. The answer's fields are told in `trm.checks.tpu_check.check.Result`."""
    where = parse_slice(request["slice"])
    os.environ.update(environment(where))
    from trm.checks.tpu_check import kernels
    from trm.checks.tpu_check.compiler import compile_for
    from trm.checks.tpu_check.hlo import read_program
    from trm.devices.xla import XlaBackend
    from trm.training.state import Puzzles

    config, puzzles = RunConfig.model_validate(request["config"]), Puzzles(*request["puzzles"])
    backend = XlaBackend()
    remat, used, rows = False, False, config.training.batch_size // where.chips
    if request["what"] == "train":
        module, starting, remat, used = trace_training(config, puzzles, where, backend, request.get("remat"))
    else:
        module, starting, rows = trace_evaluation(config, puzzles, where, backend)
    started = time.perf_counter()
    if request.get("stablehlo"):
        with open(request["stablehlo"], "w") as file:
            file.write(module)
    compiled = compile_for(module, where)
    answer: dict[str, Any] = {
        "fits": compiled.text is not None,
        "needs_gib": compiled.needs_gib,
        "remat": remat,
        "kernels": used,
        "rows_per_chip": rows,
        "host_ms": round(1000 * starting, 2),
        "compile_seconds": round(time.perf_counter() - started, 2),
    }
    if compiled.text is not None:
        scheduled = kernels.count(module, Path(request["cache"]))
        program = read_program(
            compiled.text, lambda line: (kernel_name(line), kernels.call_cycles(line, scheduled))
        )
        if request.get("hlo"):
            with open(request["hlo"], "w") as file:
                file.write(compiled.text)
        answer |= {
            "peak_gib": compiled.peak_bytes / 2**30,
            "argument_gib": compiled.argument_bytes / 2**30,
            "compiled_flops": compiled.flops,
            "cycles": program.cycles,
            "cycles_by_kind": program.by_kind,
            "collectives": {kind: item._asdict() for kind, item in program.collectives.items()},
        }
    return answer


def kernel_name(line: str) -> str:
    """What a kernel of the traced step is called."""
    from trm.checks.tpu_check.kernels import kernel_body
    from trm.network.tpu.calls import BODIES

    return f"kernel {BODIES[kernel_body(line)]}"


def main() -> None:
    answer = run(json.load(sys.stdin))
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
