"""Compile every Triton kernel for a GPU that is not here, and say what the compiler made of it.

    python -m benchmarks.kernels              # needs triton; sm_90, the paper's shapes, bfloat16
    python -m benchmarks.kernels --json kernels.json

One line for each kernel and tile: registers and bytes of local memory (spills) of a thread, shared memory of a program,
its tensor core instructions: Hopper's (HGMMA) and the older ones (HMMA), and what the programs of a call on 768 rows
read together, most of it from the L2 cache. A kernel whose shared memory exceeds the chip's is marked; nothing is timed
here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trm.network.cuda import attention, loss, norm, optimizer, swiglu, tiles, tokens
from trm.network.cuda.common import power
from trm.network.definition import EPS
from trm.study.flops import inner_width
from trm.study.schema import ModelConfig

SHARED = {80: 99 * 1024, 90: 227 * 1024}
"""Shared memory a program may use: on 9.0, and on the smallest of the other GPUs (8.6, 8.9, 12.0; 8.0 has 163 KiB)."""
LENGTH, WIDTH, CELLS, SYMBOLS, HEADS = 97, 512, 81, 11, 8
INNER = inner_width(ModelConfig(), WIDTH)
TOKEN_INNER = inner_width(ModelConfig(), LENGTH)
BF16, FP32, INT, FLOAT = "*bf16", "*fp32", "i32", "fp32"
OPTIONS = ("num_warps", "num_stages")


def candidates(operation: str, architecture: str) -> list[dict[str, int]]:
    """The tiles of an operation: those of the table, then the others worth timing."""
    entries = tiles.table(architecture)[operation]
    choices = dict.fromkeys((*entries.values(), *tiles.OPERATIONS[operation].candidates[architecture]))
    return [tile for choice in choices if (tile := tiles.parse(operation, choice)) is not None]


def cases(architecture: str) -> Iterator[tuple[str, Any, list[str], dict[str, Any]]]:
    """Name, kernel, types of the arguments that are not constants, constants and options."""
    common = {"WIDE": triton.language.float32}
    dot = common | {"OPERAND": triton.language.bfloat16}
    for axis, shape in ((1, (74496, WIDTH)), (0, (LENGTH, 1 << 18))):
        tile = norm._tiles(_Shape(shape), axis)[1] | {"AXIS": axis, "num_warps": 8} | common
        kept = {"EPS": EPS, "KEEP": True, "SCALE": True, "INTO": True}
        yield f"norm {axis}", norm._forward, [BF16] * 3 + [FP32, BF16, BF16, INT, INT], tile | kept
        yield f"norm backward {axis}", norm._backward, [BF16, BF16, FP32, BF16, INT, INT], tile
    gate = swiglu.TILE | {"num_warps": 8} | common
    for kernel, name in ((swiglu._gate, "gate"), (swiglu._gate_backward, "gate backward")):
        yield name, kernel, [BF16, BF16, INT, INT, INT, INT], gate
    for tile in candidates("channels", architecture):
        sizes = {"inner": INNER, "depth": WIDTH, "GROUP": 8, "KEEP": True}
        yield "swiglu product", swiglu._product, [BF16] * 4 + [INT], tile | sizes | dot
    padded = {"LENGTH": power(LENGTH), "inner": TOKEN_INNER}
    for tile in candidates("tokens", architecture):
        constants = padded | {"EPS": EPS, "SCALE": True}
        yield "token mixing", tokens._forward, [BF16] * 4 + [FP32, INT, INT], tile | constants | dot
    for tile in candidates("tokens backward", architecture):
        types = [BF16] * 4 + [FP32] + [BF16] * 5 + [INT, INT]
        yield "token mixing backward", tokens._backward, types, tile | padded | dot
    for rope in (False, True):
        head = {"LENGTH": power(LENGTH), "HALF": WIDTH // HEADS // 2, "ROPE": rope, "num_warps": 8} | dot
        types = [BF16, BF16, FP32, FP32, INT, INT, INT, FLOAT]
        yield f"attention rope={rope}", attention._forward, types, head
        yield f"attention backward rope={rope}", attention._backward, types, head
    head = {"CELLS": power(CELLS), "SYMBOLS": power(SYMBOLS)} | common
    yield "loss", loss._forward, [BF16, "*u8"] + [FP32] * 4 + [INT] * 4, head
    yield "loss backward", loss._backward, [BF16, "*u8", FP32, BF16] + [INT] * 4, head
    for kind, number in optimizer.KINDS.items():
        constants = {"BLOCK": optimizer.BLOCK, "KIND": number, "EMA": True} | common
        yield f"optimiser {kind}", optimizer._update, [FP32] * 8 + [INT] + [FLOAT] * 4, constants


def elements_read(operation: str, tile: dict[str, int], long: int, short: int, inner: int) -> int:
    """Elements that all programs of a call read: `tokens` and `tokens backward` of x [short, long] with weights
    padded to a power of two, `channels` of x [long, short]; `inner` is the width of the hidden layer."""
    if operation == "channels":
        across, down = -(-inner // tile["COLUMNS"]), -(-long // tile["ROWS"])
        return across * long * short + down * 2 * inner * short
    programs = -(-long // tile["COLUMNS"])
    own = 3 * short * long + long if operation == "tokens backward" else short * long
    return own + programs * 3 * power(short) * inner


def gigabytes_read(name: str, tile: dict[str, int]) -> float | None:
    """Of a call on 768 rows of the paper's model in bfloat16; None: a kernel without choices."""
    rows = 768
    if name == "swiglu product":
        return 2e-9 * elements_read("channels", tile, rows * LENGTH, WIDTH, INNER)
    if name in ("token mixing", "token mixing backward"):
        operation = name.replace("token mixing", "tokens")
        return 2e-9 * elements_read(operation, tile, rows * WIDTH, LENGTH, TOKEN_INNER)
    return None


class _Shape:
    def __init__(self, shape: tuple[int, int]):
        self.shape = shape


def compiled(kernel: Any, types: list[str], given: dict[str, Any], capability: int) -> dict[str, Any]:
    """Resources of one kernel."""
    options = {name: value for name, value in given.items() if name in OPTIONS}
    constants = {name: value for name, value in given.items() if name not in OPTIONS}
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    ordered = {name: signature[name] for name in kernel.arg_names}
    # what launching would find out: torch's memory and the paper's shapes are multiples of 16
    aligned = {
        (k,): [["tt.divisibility", 16]] for k, name in enumerate(kernel.arg_names) if ordered[name][0] == "*"
    }
    source = ASTSource(kernel, signature=ordered, constexprs=constants, attrs=aligned)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        listing = [Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm", "-c", file.name]
        machine_code = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return {
        "registers": int(usage["REG"]),
        "local_bytes": int(usage["STACK"]) + int(usage["LOCAL"]),
        "shared_bytes": found.metadata.shared,
        # products of the tensor cores: Hopper's own, and the older ones that reach about half its speed
        "hgmma": len(re.findall(r"\bHGMMA\.", machine_code)),
        "hmma": len(re.findall(r"\bHMMA\.", machine_code)),
        "comparisons": len(re.findall(r"\bFSETP\.", machine_code)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--capability", type=int, default=90, choices=sorted(SHARED))
    parser.add_argument("--first", action="store_true", help="only the first tile of each kernel")
    parser.add_argument("--only", default="", help="only kernels whose name contains this")
    parser.add_argument("--json", dest="out", type=Path)
    args = parser.parse_args()
    results = []
    for name, kernel, types, given in cases(str(args.capability)):
        if args.only not in name or (args.first and name in {found["kernel"] for found in results}):
            continue
        found = compiled(kernel, types, given, args.capability)
        tile = {key: given[key] for key in ("ROWS", "COLUMNS", "DEPTH", "INNER", *OPTIONS) if key in given}
        found = {
            "kernel": name,
            "tile": tile,
            "fits": found["shared_bytes"] <= SHARED[args.capability],
            "gigabytes_read": gigabytes_read(name, tile),
        } | found
        results.append(found)
        print(
            f"{name:28} {'x'.join(map(str, tile.values())):18} registers {found['registers']:3}  "
            f"local {found['local_bytes']:4} B  shared {found['shared_bytes'] / 1024:5.1f} KiB  "
            f"hgmma {found['hgmma']:3}  hmma {found['hmma']:3}  "
            f"reads {found['gigabytes_read'] or 0:4.1f} GB  {'' if found['fits'] else 'DOES NOT FIT'}",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps({"triton": triton.__version__, "kernels": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
