"""Cycles of a program's hand-written kernels: the compiler estimates none for them, so its schedule is counted.

libtpu dumps the bundles (one cycle each) that it has scheduled for a core. A kernel is one loop
over its grid: bundles outside it count once, those inside as often as the loop's exit test says, a step's own work as
often as it is not jumped over. Waiting for memory is not in a schedule: a kernel takes at least the time that its
arguments and results need at HBM_BYTES_PER_SECOND.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Container
from importlib.metadata import version
from pathlib import Path

from trm.checks.tpu_check.hlo import shape_bytes
from trm.study.slices import CLOCK_HZ, HBM_BYTES_PER_SECOND

_CALL = re.compile(r"stablehlo\.custom_call @tpu_custom_call\((?P<operands>[^)]*)\)(?P<rest> \{.*)")
_BODY = re.compile(r'"body": ?"([^"]+)"')
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2})?\s*:(?P<depth>(?: >)*) +\{")
_JUMP = re.compile(r"sbr\.rel \(.*?\) target bundleno = \d+ \(0x[0-9a-f]+\), region = (\d+)")
_DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"


def kernel_body(line: str) -> str | None:
    """The code of a kernel, which identifies it, from a custom call's configuration; None for other calls."""
    found = _BODY.search(line) if "tpu_custom_call" in line else None
    return found.group(1) if found else None


def kernels_module(module: str, known: Container[str] = ()) -> str | None:
    """A StableHLO module that calls each distinct kernel of `module` that is not `known` once, for one device."""
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
        found = re.findall(r"tensor<[^>]*>", results)
        lines.append(f"    %k{number} = stablehlo.custom_call @tpu_custom_call({', '.join(given)}){rest}")
        for i, kind in enumerate(found):
            if results.startswith("tuple"):
                element = f"stablehlo.get_tuple_element %k{number}[{i}] : ({results}) -> {kind}"
                lines.append(f"    %k{number}r{i} = {element}")
                names.append(f"%k{number}r{i}")
            else:
                names.append(f"%k{number}")
        types += found
    lines.append(f"    return {', '.join(names)} : {', '.join(types)}")
    head = f"  func.func @main({', '.join(arguments)}) -> ({', '.join(types)}) {{"
    return "\n".join(["module @step {", head, *lines, "  }", "}"])


def scheduled_cycles(bundles: str) -> int:
    """Cycles of one call from the text of its final bundles, one line each, marked `>` inside the loop.

    The loop is a pipeline: it runs once for every grid step and once more for each further stage, but jumps over the
    step's own work while the pipeline fills and drains.

    Raises ValueError for a schedule of another form than one loop.
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
            raise ValueError("a kernel has loops within its grid's loop: its cycles cannot be counted")
        once += 1 - depth
        inside += depth if region is None else 0
        step += depth if region else 0
        jump = _JUMP.search(line)
        if depth and jump and region is None:
            region = jump.group(1)
    if len(trips) > 1 or (inside + step and not trips):
        raise ValueError(f"a kernel's schedule has {len(trips)} loops with known ends, not one")
    count = int(trips[0] if trips else 0)
    return once + inside * count + step * (count - stages)


def count(module: str, folder: Path) -> dict[str, int]:
    """Cycles of a call of each kernel in a StableHLO module, by `kernel_body`; kept in `folder`."""
    kept = folder / f"schedules-{version('libtpu')}.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    calls = kernels_module(module, known)
    if calls is not None:
        known |= _count(calls)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(known))
        os.replace(temporary, kept)
    return known


def _count(calls: str) -> dict[str, int]:
    """Runs in a new process, because libtpu reads its options when it starts."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LIBTPU_INIT_ARGS": _DUMP.format(folder)}
        command = [sys.executable, "-m", "trm.checks.tpu_check.kernels"]
        done = subprocess.run(command, input=calls, capture_output=True, text=True, env=env)
        if done.returncode:
            raise RuntimeError(
                f"the kernels do not compile: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            )
        found = {}
        for path in Path(folder).glob("*-final_bundles.txt"):
            if "schedule-analysis" in path.name or "-TLP-" in path.name:  # TLP: the whole program
                continue
            stem, _, number = path.name.removesuffix("-final_bundles.txt").rpartition("-")
            analysis = Path(folder) / f"{stem}-{int(number) - 1}-schedule-analysis_final_bundles.txt"
            body = next(filter(None, map(kernel_body, analysis.read_text().splitlines())), None)
            if body is not None:
                found[body] = scheduled_cycles(path.read_text())
    missing = len(_distinct(calls)) - len(found)
    if missing:
        raise RuntimeError(f"the schedules of {missing} kernels were not found in what libtpu wrote")
    return found


def call_cycles(line: str, scheduled: dict[str, int]) -> int:
    """Cycles of one call in the compiled program's text: its schedule, or its traffic if that takes longer."""
    result, _, rest = line.partition("custom-call")
    types = result + rest.partition("operand_layout_constraints")[2].partition("backend_config")[0]
    return max(
        scheduled[kernel_body(line) or ""], round(shape_bytes(types) / HBM_BYTES_PER_SECOND * CLOCK_HZ)
    )


def _distinct(module: str) -> set[str]:
    lines = module.replace("\\22", '"').splitlines()
    return {body for body in map(kernel_body, lines) if body}


def main() -> None:
    from trm.checks.tpu_check.compiler import compile_for
    from trm.study.slices import Slice

    # one chip of the smallest slice
    compiled = compile_for(sys.stdin.read(), Slice("kernels", 1, "v4:2x2x1"))
    print(json.dumps({"fits": compiled.text is not None}))


if __name__ == "__main__":
    main()
