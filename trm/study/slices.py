"""TPU slices: what a name means in chips, hosts, speed, memory and libtpu's topology strings.

The number in a v4 name counts TensorCores, two to a chip: v4-64 has 32 chips on 8 hosts. In v5litepod-16 and v6e-16
it counts chips (https://cloud.google.com/tpu/docs/v4, .../v5e, .../v6e).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trm.errors import UserError

if TYPE_CHECKING:
    from trm.study.schema import RunConfig


class Generation(NamedTuple):
    """A TPU generation; rates are those of one chip."""

    api: str
    """As in v5litepod-16."""
    libtpu: str
    """As in v5e:4x4."""
    counted: int
    """By how much a chip raises the number in the name."""
    one_host: int
    """Chips of the largest slice of one host; hosts of larger slices have four."""
    peak_flops: float
    """bfloat16 operations a second."""
    hbm_gib: float
    """What a program may fill of the memory: 32 GiB of v4 and v6e, 16 GiB of v5e, less what libtpu reserves."""
    hbm_bytes_per_second: float
    clock_hz: float
    """At which the compiler's cycle estimates give the published peak for a large matrix product."""
    chip_config: str
    """libtpu's name: megacore makes one device of v4's two TensorCores."""
    shapes: dict[int, str]
    """Topologies by the number of chips."""


_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
V4 = Generation("v4", "v4", 2, 4, 275e12, 30.75, 1.2e12, 1.05e9, "megacore", _CUBES)
GENERATIONS = (
    V4,
    Generation("v5litepod", "v5e", 1, 8, 197e12, 15.75, 0.82e12, 1.5e9, "default", _FLAT),
    Generation("v6e", "v6e", 1, 8, 918e12, 31.25, 1.64e12, 1.75e9, "default", _FLAT),
)
CHIPS_PER_HOST = 4
PEAK_FLOPS = V4.peak_flops
HBM_VARIABLE = "TRM_XLA_HBM_GIB"
HBM_BYTES_PER_SECOND = V4.hbm_bytes_per_second
CLOCK_HZ = V4.clock_hz


class Slice(NamedTuple):
    """A slice by its name in the Cloud TPU API."""

    name: str
    chips: int
    topology: str
    """As libtpu names it: v4:2x4x4."""

    @property
    def generation(self) -> Generation:
        """What a chip of it can do."""
        libtpu = self.topology.partition(":")[0]
        return next(generation for generation in GENERATIONS if generation.libtpu == libtpu)

    @property
    def hosts(self) -> int:
        """Machines."""
        return 1 if self.chips <= self.generation.one_host else self.chips // CHIPS_PER_HOST


def hbm_gib(generation: Generation = V4) -> float:
    """What a program may fill of a chip, in GiB, or what $TRM_XLA_HBM_GIB says instead. Raises UserError."""
    given = os.environ.get(HBM_VARIABLE, str(generation.hbm_gib))
    try:
        bound = float(given)
    except ValueError:
        bound = 0.0
    most = max(generation.hbm_gib for generation in GENERATIONS)
    if not 0 < bound <= most:
        raise UserError(f"{HBM_VARIABLE}={given}: it must be a number of GiB above 0 and not above {most}")
    return bound


def evaluated(config: RunConfig, where: Slice) -> int | None:
    """Puzzles that a job on the slice evaluates: the test puzzles on one host (None: all there are); on more hosts
    only those of the validation between training steps."""
    return config.data.test_puzzles if where.hosts == 1 else config.data.validation_puzzles


def parse_slice(name: str) -> Slice:
    """The slice called v4-8, v5litepod-16, v6e-4, ...; `chip`: one chip of a v4 host. Raises UserError for another."""
    if name == "chip":
        return Slice(name, 1, f"{V4.libtpu}:{V4.shapes[4]}")
    known = {
        f"{generation.api}-{chips * generation.counted}": Slice(
            f"{generation.api}-{chips * generation.counted}", chips, f"{generation.libtpu}:{shape}"
        )
        for generation in GENERATIONS
        for chips, shape in generation.shapes.items()
    }
    if name not in known:
        raise UserError(f"no TPU slice {name!r} is known here: {', '.join(known)} are")
    return known[name]
