"""Counts the cycles of a compiled TPU v4 program: the compiler's estimates, and its schedules of the Pallas kernels.

    echo '{"config": {...}, "puzzles": [81, 11, 1, 0], "slice": "v4-64"}' | python -m benchmarks.tpu_cycles

Run by `benchmarks.tpu` in the environment envs/tpu, a process for each program: torch_xla fixes the number of virtual
devices when it starts. libtpu dumps the scheduled bundles of a core, one cycle each. A kernel is one loop over its
grid: bundles outside count once, those inside once per iteration, and a grid step's work as often as it is not skipped.
Schedules do not include memory stalls, so a kernel takes at least the time to transfer its arguments and results to
and from the chip's memory.
"""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from trm.checks.tpu_check.compiler import compile_for
from trm.checks.tpu_check.worker import environment, set_libtpu_flags, trace_training
from trm.study.schema import RunConfig
from trm.study.slices import Slice, parse_slice
from trm.study.tasks import Sizes

CLOCK_HZ = 1.05e9
"""Clock of a v4 chip at which the compiler's estimate of a large matrix product gives the published peak."""
HBM_BYTES_PER_SECOND = 1.2e12
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (?P<type>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]+\d+|pred)\[([\d,]*)\]")
_CALL = re.compile(r"stablehlo\.custom_call @tpu_custom_call\((?P<operands>[^)]*)\)(?P<rest> \{.*)")
_BODY = re.compile(r'"body": ?"([^"]+)"')
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2})?\s*:(?P<depth>(?: >)*) +\{")
_JUMP = re.compile(r"sbr\.rel \(.*?\) target bundleno = \d+ \(0x[0-9a-f]+\), region = (\d+)")
_DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"


def computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation by name; the entry computation is called ENTRY."""
    result: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if re.match(r"(?!HloModule)\S.*\{\s*$", line):
            name = _first(r"^(?:ENTRY )?%?([\w.\-]+)", line)
            current = result.setdefault("ENTRY" if line.startswith("ENTRY") else name, [])
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(re.sub(r"/\*.*?\*/", "", line))
    return result


def _first(pattern: str, line: str) -> str:
    """The group of the first match. Raises ValueError if the line is not HLO as printed by libtpu."""
    match = re.search(pattern, line)
    if match is None:
        raise ValueError(f"not HLO as printed by libtpu: {line}")
    return match.group(1)


def shape_bytes(text: str) -> int:
    """Total bytes of the arrays in an HLO type."""
    return sum(
        _BYTES.get(kind, 4) * prod(int(size) for size in sizes.split(",") if size)
        for kind, sizes in _SHAPE.findall(text)
    )


def read_program(
    text: str, kernel: Callable[[str], tuple[str, int]] | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """Cycles by kind of instruction, and bytes of results by kind of collective, of a scheduled HLO module.

    Loop bodies count as often as they run. `kernel`: returns kind and cycles of a `tpu_custom_call`, given its line,
    since the compiler has no estimate of it.
    """
    parts = computations(text)
    kinds: dict[str, int] = defaultdict(int)
    sent: dict[str, int] = defaultdict(int)

    def visit(name: str, times: int) -> None:
        for line in parts.get(name, ()):
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            op = match["op"].removesuffix("-start")
            if op == "while":
                trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                visit(_first(r"body=%?([\w.\-]+)", line), times * int(trips.group(1) if trips else 1))
            elif op == "conditional":
                for branch in re.findall(
                    r"(?:computation=|\{|, )%?([\w.\-]+)", line.partition("branch_comp")[2]
                ):
                    visit(branch, times)
            elif op == "call":
                visit(_first(r"to_apply=%?([\w.\-]+)", line), times)
            elif op in COLLECTIVES:
                sent[op] += times * shape_bytes(match["type"])
            elif kernel and "tpu_custom_call" in line:
                kind, cycles = kernel(line)
                kinds[kind] += times * cycles
            elif estimate := _CYCLES.search(line):
                kinds[_kind(op, line, parts)] += times * int(estimate.group(1))

    visit("ENTRY", 1)
    return dict(kinds), dict(sent)


def _kind(op: str, line: str, parts: dict[str, list[str]]) -> str:
    if op != "fusion":
        return op
    called = re.search(r"calls=%?([\w.\-]+)", line)
    body = parts.get(called.group(1), ()) if called else ()
    return "matrix product" if any(" convolution(" in inner for inner in body) else "elementwise"


def kernel_body(line: str) -> str | None:
    """The code of a kernel, which identifies it, from a custom call; None for other lines."""
    match = _BODY.search(line) if "tpu_custom_call" in line else None
    return match.group(1) if match else None


def kernels_module(module: str) -> str | None:
    """A StableHLO module for one device that calls each distinct kernel of `module` once; None: it has none."""
    calls: dict[str, str] = {}
    for line in module.splitlines():
        match = _CALL.search(line)
        if match:
            body = kernel_body(line.replace("\\22", '"'))
            if body is not None:
                calls[body] = match["rest"]
    if not calls:
        return None
    arguments: list[str] = []
    lines: list[str] = []
    names: list[str] = []
    types: list[str] = []
    for number, rest in enumerate(calls.values()):
        before, _, results = rest.rpartition(") -> ")
        operands = before.partition(" : (")[2]
        given = []
        for kind in re.findall(r"tensor<[^>]*>", operands):
            given.append(f"%arg{len(arguments)}")
            arguments.append(f"{given[-1]}: {kind}")
        outputs = re.findall(r"tensor<[^>]*>", results)
        lines.append(f"    %k{number} = stablehlo.custom_call @tpu_custom_call({', '.join(given)}){rest}")
        for i, kind in enumerate(outputs):
            if results.startswith("tuple"):
                element = f"stablehlo.get_tuple_element %k{number}[{i}] : ({results}) -> {kind}"
                lines.append(f"    %k{number}r{i} = {element}")
                names.append(f"%k{number}r{i}")
            else:
                names.append(f"%k{number}")
        types += outputs
    lines.append(f"    return {', '.join(names)} : {', '.join(types)}")
    head = f"  func.func @main({', '.join(arguments)}) -> ({', '.join(types)}) {{"
    return "\n".join(["module @step {", head, *lines, "  }", "}"])


def scheduled_cycles(bundles: str) -> int:
    """Cycles of one call, from the text of its final bundles: one per line, marked `>` inside the loop.

    The loop is pipelined: it has one iteration per grid step and one per further stage, and skips the step's work while
    the pipeline fills and drains. ValueError: the schedule is not a single loop.
    """
    once = inside = step = 0
    region = None
    trips = re.findall(r"(\d+) /\* loop exit test \*/", bundles)
    stages = max(
        (int(number) for number in re.findall(r"iteration index, stage = (\d+)", bundles)), default=0
    )
    for line in bundles.splitlines():
        if region and re.search(rf"Start(?:/End empty)? region {region}\b", line):
            region = None
        match = _BUNDLE.match(line)
        if match is None:
            continue
        depth = match["depth"].count(">")
        if depth > 1:
            raise ValueError("a kernel has loops within its grid loop: its cycles cannot be counted")
        once += 1 - depth
        inside += depth if region is None else 0
        step += depth if region else 0
        jump = _JUMP.search(line)
        if depth and jump and region is None:
            region = jump.group(1)
    if len(trips) > 1 or (inside + step and not trips):
        raise ValueError(f"a kernel's schedule has {len(trips)} loops with known trip counts, not one")
    count = int(trips[0] if trips else 0)
    return once + inside * count + step * (count - stages)


def kernel_cycles(module: str) -> dict[str, int]:
    """Cycles per call of each kernel in a StableHLO module, by `kernel_body`.

    Compiles in a new process, because libtpu reads its options when it starts.
    """
    calls = kernels_module(module)
    if calls is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LIBTPU_INIT_ARGS": _DUMP.format(folder)}
        command = [sys.executable, "-m", "benchmarks.tpu_cycles", "kernels"]
        done = subprocess.run(command, input=calls, capture_output=True, text=True, env=env)
        if done.returncode:
            raise RuntimeError(
                f"the kernels do not compile: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            )
        cycles = {}
        for path in Path(folder).glob("*-final_bundles.txt"):
            if "schedule-analysis" in path.name or "-TLP-" in path.name:  # TLP: the whole program
                continue
            stem, _, number = path.name.removesuffix("-final_bundles.txt").rpartition("-")
            analysis = Path(folder) / f"{stem}-{int(number) - 1}-schedule-analysis_final_bundles.txt"
            body = next(filter(None, map(kernel_body, analysis.read_text().splitlines())), None)
            if body is not None:
                cycles[body] = scheduled_cycles(path.read_text())
    missing = set(filter(None, map(kernel_body, calls.replace("\\22", '"').splitlines()))) - cycles.keys()
    if missing:
        raise RuntimeError(f"libtpu wrote no schedules of {len(missing)} kernels")
    return cycles


def call_cycles(line: str, scheduled: dict[str, int]) -> int:
    """Cycles of one call in the compiled program: its schedule, or its memory traffic if that takes longer."""
    result, _, rest = line.partition("custom-call")
    types = result + rest.partition("operand_layout_constraints")[2].partition("backend_config")[0]
    traffic = shape_bytes(types) / HBM_BYTES_PER_SECOND * CLOCK_HZ
    return max(scheduled[kernel_body(line) or ""], round(traffic))


def kernel_name(line: str) -> str:
    """The name of a kernel, which its code holds."""
    code = base64.b64decode(kernel_body(line) or "")
    match = re.search(rb"(token|channel|attention)_(forward|backward)|weight_gradient", code)
    return f"kernel {match[0].decode().replace('_', ' ')}" if match else "kernel"


def count(request: dict[str, Any]) -> dict[str, Any]:
    """Trace and compile the training step of a run: GiB of a chip, cycles by kind, bytes sent by kind of collective."""
    where = parse_slice(request["slice"])
    os.environ.update(environment(where))
    set_libtpu_flags(where)
    config, sizes = RunConfig.model_validate(request["config"]), Sizes(*request["puzzles"])
    module, remat = trace_training(config, sizes, None)
    result = compile_for(module, where)
    answer: dict[str, Any] = {"fits": result.fits, "gib": result.gib, "remat": remat}
    if result.fits:
        scheduled = kernel_cycles(module)
        cycles, sent = read_program(
            result.text, lambda line: (kernel_name(line), call_cycles(line, scheduled))
        )
        answer |= {"cycles": cycles, "sent": sent}
    return answer


def main() -> None:
    if sys.argv[1:] == ["kernels"]:
        compile_for(sys.stdin.read(), Slice("kernels", 1, "v4:2x2x1"))  # one chip of the smallest slice
    else:
        print("\n" + json.dumps(count(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
