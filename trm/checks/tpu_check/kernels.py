"""Cycle counts of Pallas kernels, for which the compiler gives no estimate, from their schedules.

libtpu dumps the scheduled bundles of a core, one cycle each. A kernel is one loop over its grid: bundles outside count
once, those inside once per iteration, and a grid step's work as often as it is not skipped. Schedules do not include
memory stalls, so a kernel takes at least the time to transfer its arguments and results to and from the chip's memory.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Container
from importlib.metadata import version
from pathlib import Path

from trm.checks.tpu_check.hlo import shape_bytes
from trm.io import read_json, write_json
from trm.study.slices import Generation

_CALL = re.compile(r"stablehlo\.custom_call @tpu_custom_call\((?P<operands>[^)]*)\)(?P<rest> \{.*)")
_BODY = re.compile(r'"body": ?"([^"]+)"')
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2})?\s*:(?P<depth>(?: >)*) +\{")
_JUMP = re.compile(r"sbr\.rel \(.*?\) target bundleno = \d+ \(0x[0-9a-f]+\), region = (\d+)")
_DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"


def kernel_body(line: str) -> str | None:
    """The code of a kernel, which identifies it, from a custom call; None for other lines."""
    match = _BODY.search(line) if "tpu_custom_call" in line else None
    return match.group(1) if match else None


def kernels_module(module: str, known: Container[str] = ()) -> str | None:
    """A StableHLO module for one device that calls each distinct kernel of `module` once, except those `known`."""
    calls: dict[str, str] = {}
    for line in module.splitlines():
        match = _CALL.search(line)
        if match:
            body = kernel_body(line.replace("\\22", '"'))
            if body is not None and body not in known:
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


def count(module: str, folder: Path) -> dict[str, int]:
    """Cycles per call of each kernel in a StableHLO module, by `kernel_body`; cached in `folder`."""
    cached = folder / f"schedules-{version('libtpu')}.json"
    known: dict[str, int] = read_json(cached) if cached.exists() else {}
    calls = kernels_module(module, known)
    if calls is not None:
        known |= _count(calls)
        write_json(cached, known)
    return known


def _count(calls: str) -> dict[str, int]:
    """Compile in a new process, because libtpu reads its options when it starts."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LIBTPU_INIT_ARGS": _DUMP.format(folder)}
        command = [sys.executable, "-m", "trm.checks.tpu_check.kernels"]
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


def call_cycles(line: str, scheduled: dict[str, int], chip: Generation) -> int:
    """Cycles of one call in the compiled program: its schedule, or its memory traffic if that takes longer."""
    result, _, rest = line.partition("custom-call")
    types = result + rest.partition("operand_layout_constraints")[2].partition("backend_config")[0]
    traffic = shape_bytes(types) / chip.hbm_bytes_per_second * chip.clock_hz
    return max(scheduled[kernel_body(line) or ""], round(traffic))


def main() -> None:
    from trm.checks.tpu_check.compiler import compile_for
    from trm.study.slices import Slice

    compile_for(sys.stdin.read(), Slice("kernels", 1, "v4:2x2x1"))  # one chip of the smallest slice


if __name__ == "__main__":
    main()
