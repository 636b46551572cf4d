"""Compile every Triton kernel for a GPU that this machine lacks, and report what the compiler made of it.

    python -m benchmarks.kernels              # needs triton; sm_90, the paper's shapes, bfloat16
    python -m benchmarks.kernels --capability 120
    python -m benchmarks.kernels --json kernels.json

One row for each kernel and tile: registers and bytes of local memory (spills) per thread, programs that one
multiprocessor holds at once, shared memory per program and whether it fits on the chip, tensor core instructions,
Hopper's (HGMMA), Blackwell's and the older ones (HMMA, about half as fast there), and what all programs of a call on
768 rows read, most of it from the L2 cache. Nothing is timed.
"""

from __future__ import annotations

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

from benchmarks.frame import finish, parser
from trm.backends.cuda import attention, swiglu, tiles, tokens
from trm.backends.cuda.common import power
from trm.model.definition import EPS
from trm.study.flops import inner_width
from trm.study.schema import ModelConfig

SHARED = {80: 99, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory for a program, by compute capability; 8.0 has 163, but shares its tiles with the others."""
LENGTH, WIDTH, HEADS, BATCH = 97, 512, 8, 768
ROWS, COLUMNS = BATCH * LENGTH, BATCH * WIDTH
INNER = inner_width(ModelConfig(), WIDTH)
TOKEN_INNER = inner_width(ModelConfig(), LENGTH)
READS = {
    "swiglu product": ("channels", ROWS, WIDTH, INNER),
    "token mixing": ("tokens", COLUMNS, LENGTH, TOKEN_INNER),
    "token mixing backward": ("tokens backward", COLUMNS, LENGTH, TOKEN_INNER),
}
"""Kernels with a choice of tiles: their operation, and their sizes for `elements_read`."""
BF16, FP32, FLOAT = "*bf16", "*fp32", "fp32"
OPTIONS = ("num_warps", "num_stages")
WORTH_TIMING = {
    "channels": {
        "80": ("128x128x64x8x3", "128x64x64x8x4", "256x64x64x8x3"),
        "90": ("128x128x64x8x3", "128x64x64x4x4", "128x64x64x8x4", "256x64x64x8x3"),
    },
    "tokens": {
        "80": ("64x64x4x2", "64x64x4x1"),
        "90": ("64x64x4x2", "64x64x4x1", "64x128x8x1", "128x128x8x1"),
    },
    "tokens backward": {
        "80": ("32x64x8x2", "16x64x4x2"),
        "90": ("32x64x8x2", "32x64x4x2", "16x64x4x2"),
    },
}
"""Tiles by operation and architecture. tests/backends/cuda/test_compiled.py compiles each of them. On sm_90 its
products are `wgmma` alone, it spills at most 80 bytes per thread (wider token tiles spill hundreds, and with INNER 32
most products become the older `mma`), and it fits into shared memory. On sm_80 it fits into the 99 KiB of 8.6, 8.9 and
12.0 as well."""


def candidates(operation: str, architecture: str) -> list[dict[str, int]]:
    """Tiles of an operation: those in the table, then the others worth timing."""
    entries = tiles.table(architecture)[operation]
    choices = dict.fromkeys((*entries.values(), *WORTH_TIMING[operation][architecture]))
    return [tiles.parse(operation, choice) for choice in choices]


def cases(architecture: str) -> Iterator[tuple[str, Any, list[str | int], dict[str, Any]]]:
    """Name, kernel, types of the non-constant arguments (of whole numbers the value of the paper's model: Triton
    compiles another program for those divisible by 16), and constants with options."""
    common = {"WIDE": triton.language.float32}
    dot = common | {"OPERAND": triton.language.bfloat16}
    for tile in candidates("channels", architecture):
        sizes = {"inner": INNER, "depth": WIDTH, "GROUP": 8, "KEEP": True}
        yield "swiglu product", swiglu._product, [BF16] * 4 + [ROWS], tile | sizes | dot
    padded = {"LENGTH": power(LENGTH), "inner": TOKEN_INNER}
    for tile in candidates("tokens", architecture):
        constants = padded | {"EPS": EPS, "SCALE": True}
        yield "token mixing", tokens._forward, [BF16] * 4 + [FP32, LENGTH, COLUMNS], tile | constants | dot
    for tile in candidates("tokens backward", architecture):
        types = [BF16] * 4 + [FP32] + [BF16] * 5 + [LENGTH, COLUMNS]
        yield "token mixing backward", tokens._backward, types, tile | padded | dot
    for rope in (False, True):
        head = {"LENGTH": power(LENGTH), "HALF": WIDTH // HEADS // 2, "ROPE": rope, "num_warps": 8} | dot
        types = [BF16, BF16, FP32, FP32, LENGTH, BATCH, HEADS, FLOAT]
        yield f"attention rope={rope}", attention._forward, types, head
        yield f"attention backward rope={rope}", attention._backward, types, head


def elements_read(operation: str, tile: dict[str, int], long: int, short: int, inner: int) -> int:
    """Elements that all programs of a call read: x is [long, short] for `channels`; otherwise it is [short, long] and
    the weights are padded to a power of two. `inner` is the width of the hidden layer."""
    if operation == "channels":
        across, down = -(-inner // tile["COLUMNS"]), -(-long // tile["ROWS"])
        return across * long * short + down * 2 * inner * short
    programs = -(-long // tile["COLUMNS"])
    own = 3 * short * long + long if operation == "tokens backward" else short * long
    return own + programs * 3 * power(short) * inner


def gigabytes_read(name: str, tile: dict[str, int]) -> float | None:
    """What a call on 768 rows of the paper's model reads in bfloat16; None for kernels without a choice of tiles."""
    if name not in READS:
        return None
    operation, *sizes = READS[name]
    return 2e-9 * elements_read(operation, tile, *sizes)


def compiled(kernel: Any, types: list[str | int], given: dict[str, Any], capability: int) -> dict[str, Any]:
    """Resources of one kernel."""
    options = {name: value for name, value in given.items() if name in OPTIONS}
    constants = {name: value for name, value in given.items() if name not in OPTIONS}
    names = [name for name in kernel.arg_names if name not in constants]
    arguments = dict(zip(names, types, strict=True))
    ordered = {
        name: "constexpr"
        if name in constants
        else "i32"
        if isinstance(arguments[name], int)
        else arguments[name]
        for name in kernel.arg_names
    }
    # as in a launch: torch's memory is aligned to 16, and so are most of the paper's sizes
    aligned = {
        (k,): [["tt.divisibility", 16]]
        for k, name in enumerate(kernel.arg_names)
        if ordered[name][0] == "*" or (ordered[name] == "i32" and arguments[name] % 16 == 0)
    }
    source = ASTSource(kernel, signature=ordered, constexprs=constants, attrs=aligned)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()

        def tool(name: str, option: str) -> str:
            command = [Path(triton.__file__).parent / "backends/nvidia/bin" / name, option, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", tool("cuobjdump", "--dump-resource-usage")))
        machine_code = tool("nvdisasm", "-c")
    instructions = {
        "hgmma": "HGMMA",
        "hmma": "HMMA",
        "blackwell": "UTCHMMA|UTCQMMA|UTCOMMA",
        "comparisons": "FSETP",
    }
    registers = int(usage["REG"])
    # a multiprocessor has 65,536 registers, given out to warps of 32 threads by 8, and this much shared memory
    by_registers = 65_536 // (-(-registers // 8) * 8 * 32 * options.get("num_warps", 4))
    by_memory = SHARED[capability] * 1024 // max(1, found.metadata.shared)
    return {
        "registers": registers,
        "programs": min(by_registers, by_memory),
        "local_bytes": int(usage["STACK"]) + int(usage["LOCAL"]),
        "shared_bytes": found.metadata.shared,
        "fits": found.metadata.shared <= SHARED[capability] * 1024,
        **{key: len(re.findall(rf"\b(?:{name})\b", machine_code)) for key, name in instructions.items()},
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--capability", type=int, default=90, choices=sorted(SHARED))
    options.add_argument("--first", action="store_true", help="only the first tile of each kernel")
    options.add_argument("--only", default="", help="only kernels whose name contains this")
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name, kernel, types, given in cases("90" if args.capability == 90 else "80"):
        if args.only not in name or (args.first and name in {row["kernel"] for row in rows}):
            continue
        tile = [given[key] for key in ("ROWS", "COLUMNS", "DEPTH", "INNER", *OPTIONS) if key in given]
        named = {
            "kernel": name,
            "tile": "x".join(map(str, tile)),
            "gigabytes_read": gigabytes_read(name, given),
        }
        print(f"{name} {named['tile']}", file=sys.stderr, flush=True)
        rows.append(named | compiled(kernel, types, given, args.capability))
    finish(rows, args.json, triton=triton.__version__)


if __name__ == "__main__":
    main()
