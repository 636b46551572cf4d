"""TPU slices by name: chips, hosts, speed, memory and libtpu's topology strings.

The number in a v4 name counts TensorCores, two to a chip: v4-64 has 32 chips on 8 hosts. In v5litepod-16 and v6e-16
it counts chips (https://cloud.google.com/tpu/docs/v4, .../v5e, .../v6e).
"""

import os
from typing import NamedTuple

from trm.errors import UserError


class Generation(NamedTuple):
    """A TPU generation; speed and memory are per chip."""

    api: str
    """Name in the Cloud TPU API, as in v5litepod-16."""
    libtpu: str
    """Name in libtpu, as in v5e:4x4."""
    counted: int
    """What one chip adds to the number in a slice's name."""
    one_host: int
    """Chips of the largest single-host slice; hosts of larger slices have four."""
    peak_flops: float
    """bfloat16 operations per second."""
    hbm_gib: float
    """Memory that a program may use: 32 GiB (v4, v6e) or 16 GiB (v5e), less what libtpu reserves."""
    chip_config: str
    """libtpu's name: with megacore, the two TensorCores of a v4 chip are one device."""
    shapes: dict[int, str]
    """Number of chips -> topology."""


_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
V4 = Generation("v4", "v4", 2, 4, 275e12, 30.75, "megacore", _CUBES)
GENERATIONS = (
    V4,
    Generation("v5litepod", "v5e", 1, 8, 197e12, 15.75, "default", _FLAT),
    Generation("v6e", "v6e", 1, 8, 918e12, 31.25, "default", _FLAT),
)
CHIPS_PER_HOST = 4
HBM_VARIABLE = "TRM_XLA_HBM_GIB"


class Slice(NamedTuple):
    """A slice; `name` is that of the Cloud TPU API."""

    name: str
    chips: int
    topology: str
    """libtpu's name, such as v4:2x4x4."""

    @property
    def generation(self) -> Generation:
        libtpu = self.topology.partition(":")[0]
        return next(generation for generation in GENERATIONS if generation.libtpu == libtpu)

    @property
    def hosts(self) -> int:
        return 1 if self.chips <= self.generation.one_host else self.chips // CHIPS_PER_HOST

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts


class Pod(NamedTuple):
    """Equal slices that one study uses. A job gets one host, or all hosts of one slice."""

    slice: Slice
    slices: int

    @property
    def hosts(self) -> int:
        """Of all slices: as many jobs of one host run at once."""
        return self.slice.hosts * self.slices

    @property
    def chips(self) -> int:
        return self.slice.chips * self.slices


def hbm_gib(generation: Generation = V4) -> float:
    """Memory of a chip that a program may use, in GiB, or $TRM_XLA_HBM_GIB. Raises UserError."""
    given = os.environ.get(HBM_VARIABLE, str(generation.hbm_gib))
    try:
        bound = float(given)
    except ValueError:
        bound = 0.0
    most = max(generation.hbm_gib for generation in GENERATIONS)
    if not 0 < bound <= most:
        raise UserError(f"{HBM_VARIABLE}={given}: give a number of GiB above 0 and not above {most}")
    return bound


def parse_slice(name: str) -> Slice:
    """The slice named v4-8, v5litepod-16, v6e-4, ...; `chip` is one chip of a v4 host. Raises UserError."""
    if name == "chip":
        return Slice(name, 1, f"{V4.libtpu}:{V4.shapes[4]}")
    known = [
        Slice(f"{kind.api}-{chips * kind.counted}", chips, f"{kind.libtpu}:{shape}")
        for kind in GENERATIONS
        for chips, shape in kind.shapes.items()
    ]
    if found := next((item for item in known if item.name == name), None):
        return found
    raise UserError(f"unknown TPU slice {name!r}: there are {', '.join(item.name for item in known)}")
