"""Compiles StableHLO with libtpu, using private parts of jax 0.7.1, which envs/tpu pins."""

import re
from typing import Any, NamedTuple

import numpy as np

from trm.study.slices import Slice


class Compiled(NamedTuple):
    """A program for one chip of a slice."""

    fits: bool
    gib: float
    """Memory that it takes, or if it does not fit needs."""
    text: str
    """Scheduled HLO; empty if it does not fit."""


def compile_for(module: str, where: Slice) -> Compiled:
    """Compile a StableHLO module, partitioned over all chips of the slice. RuntimeError: the compiler rejects the
    program for a reason other than memory."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="tpu", topology_name=where.topology, chip_config_name=where.generation.chip_config
    )
    chips = described.devices[: where.chips]
    # jax's dialects lack torch_xla's module attributes
    module = re.sub(r"module @(\S+) attributes \{[^\n]*\} \{", "module @step {", module, count=1)
    with mlir.make_ir_context():
        bytecode = mlir.module_to_bytecode(ir.Module.parse(module))
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=where.chips,
        device_assignment=np.array([[chip.id for chip in chips]]),
        use_spmd_partitioning=True,
    )
    # as torch_xla does, so that the carry does not come back replicated
    options.executable_build_options.allow_spmd_sharding_propagation_to_output = [True]
    try:
        program: Any = chips[0].client.compile(bytecode, xla_client.DeviceList(tuple(chips)), options)
    except Exception as error:
        needs = re.search(r"Used ([\d.]+)([MG]) of [\d.]+[MG] hbm", str(error))
        if needs is None:
            raise RuntimeError(f"libtpu rejects the program: {str(error).splitlines()[0]}") from error
        gib = float(needs.group(1)) / (1024 if needs.group(2) == "M" else 1)
        return Compiled(False, gib, "")
    peak = program.get_compiled_memory_stats().peak_memory_in_bytes
    return Compiled(True, peak / 2**30, program.hlo_modules()[0].to_string())
