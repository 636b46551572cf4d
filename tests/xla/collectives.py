"""Run a traced training step on XLA's CPU devices, shared out over some processes that JAX joins by gloo.

    python -m tests.xla.collectives MODULE OUT [PROCESS COUNT PORT]

torch_xla's own CPU client cannot join processes. The module is partitioned over four devices, as on four chips; its
arguments are made up, the same in every process. OUT gets this process's part of each result.
"""

import re
import sys
from pathlib import Path

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICES = 4
DTYPES = {"f32": np.float32, "f64": np.float64, "i16": np.int16, "i32": np.int32, "i64": np.int64}
DTYPES |= {"i1": np.bool_, "ui8": np.uint8, "ui32": np.uint32}


def arguments(module: str) -> list[tuple[tuple[int, ...], str, int | None]]:
    """Shape, dtype and axis shared out over the devices (None: whole on each) of each argument."""
    head = next(line for line in module.splitlines() if "func.func @main(" in line)
    found = []
    for part in re.split(r", (?=%arg\d+:)", head.partition("@main(")[2].rpartition(") -> ")[0]):
        *sizes, dtype = re.search(r"tensor<([^>]*)>", part).group(1).split("x")
        tiles = re.search(r'mhlo.sharding = "\{devices=\[([\d,]+)\]', part)
        axis = tiles.group(1).split(",").index(str(DEVICES)) if tiles else None
        found.append((tuple(map(int, sizes)), dtype, axis))
    return found


def made_up(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Small positive numbers: valid symbols, rows and second moments."""
    if dtype.startswith("f"):
        return rng.uniform(0, 0.1, shape).astype(DTYPES[dtype])
    return rng.integers(0, 2, shape).astype(DTYPES[dtype])


def main() -> None:
    module, out, *joined = sys.argv[1:]
    process, count, port = map(int, joined) if joined else (0, 1, 0)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", DEVICES // count)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, process)
    text = Path(module).read_text()
    devices, rng = jax.devices(), np.random.default_rng(0)
    assert len(devices) == DEVICES
    mesh = Mesh(np.array(devices), ("rows",))
    arrays = []
    for shape, dtype, axis in arguments(text):
        value = made_up(shape, dtype, rng)
        spec = PartitionSpec(*("rows" if at == axis else None for at in range(len(shape))))
        arrays.append(
            jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda at, v=value: v[at])
        )
    plain = re.sub(r"module @(\S+) attributes \{[^\n]*\} \{", "module @step {", text, count=1)
    with mlir.make_ir_context():
        bytecode = mlir.module_to_bytecode(ir.Module.parse(plain))
    ids = np.array([[device.id for device in devices]])
    options = compiler.get_compile_options(1, DEVICES, device_assignment=ids, use_spmd_partitioning=True)
    options.executable_build_options.allow_spmd_sharding_propagation_to_output = [True]
    program = devices[0].client.compile_and_load(bytecode, xla_client.DeviceList(tuple(devices)), options)
    results = program.execute_sharded(arrays).disassemble_into_single_device_arrays()
    whole = re.findall(r"tensor<([^>]*)>", re.search(r"\n    return .* : (.*)\n", text).group(1))
    parts = {}
    for number, (kind, shards) in enumerate(zip(whole, results, strict=True)):
        shape = tuple(map(int, kind.split("x")[:-1]))
        blocks = [np.asarray(shard) for shard in shards]
        axes = [axis for axis, size in enumerate(shape) if blocks[0].shape[axis] != size]
        parts[f"{number} {axes[0] if axes else -1}"] = np.concatenate(blocks, axes[0]) if axes else blocks[0]
    np.savez(out, **parts)


if __name__ == "__main__":
    main()
