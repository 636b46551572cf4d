"""Parses a compiled TPU program: the compiler's cycle estimates and the communication between chips."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (?P<type>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]+\d+|pred)\[([\d,]*)\]")


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind: count per step and total bytes of their results."""

    count: int
    bytes: int


class Program(NamedTuple):
    """Cycles and communication of one program."""

    cycles: int
    """Sum over the scheduled instructions, loop bodies times their trip counts; without collectives."""
    by_kind: dict[str, int]
    """Cycles by kind: matrix products, other fusions, copies, ..."""
    collectives: dict[str, Collective]


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


def read_program(text: str, kernel: Callable[[str], tuple[str, int]] | None = None) -> Program:
    """Cycles and collectives of a scheduled, optimised HLO module.

    `kernel`: returns kind and cycles of a `tpu_custom_call`, given its line, since the compiler has no estimate of it.
    """
    parts = computations(text)
    kinds: dict[str, int] = defaultdict(int)
    sent: dict[str, list[int]] = defaultdict(lambda: [0, 0])

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
                sent[op][0] += times
                sent[op][1] += times * shape_bytes(match["type"])
            elif kernel and "tpu_custom_call" in line:
                kind, cycles = kernel(line)
                kinds[kind] += times * cycles
            elif estimate := _CYCLES.search(line):
                kinds[_kind(op, line, parts)] += times * int(estimate.group(1))

    visit("ENTRY", 1)
    return Program(sum(kinds.values()), dict(kinds), {kind: Collective(*pair) for kind, pair in sent.items()})


def _kind(op: str, line: str, parts: dict[str, list[str]]) -> str:
    if op != "fusion":
        return op
    called = re.search(r"calls=%?([\w.\-]+)", line)
    body = parts.get(called.group(1), ()) if called else ()
    return "matrix product" if any(" convolution(" in inner for inner in body) else "elementwise"
