"""TPU v4 slices: what a name means in chips, hosts and libtpu's topology strings.

The number in an API name counts TensorCores, two to a chip: v4-64 has 32 chips on 8 hosts
(https://cloud.google.com/tpu/docs/v4).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trm.errors import UserError

if TYPE_CHECKING:
    from trm.study.schema import RunConfig

CHIPS_PER_HOST = 4
PEAK_FLOPS = 275e12
"""bfloat16 operations a second of one v4 chip."""
HBM_GIB = 30.75
"""What a program may fill of a chip's 32 GiB."""
HBM_VARIABLE = "TRM_XLA_HBM_GIB"
HBM_BYTES_PER_SECOND = 1.2e12
"""Of one chip."""
CLOCK_HZ = 1.05e9
"""Clock at which the compiler's cycle estimates give its 255 of 275 TFLOP/s for a large matrix product."""
SHAPES = {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8", 512: "4x8x8"}


class Slice(NamedTuple):
    """A part of a TPU v4 pod."""

    name: str
    chips: int
    topology: str
    """As libtpu names it: v4:2x4x4."""

    @property
    def hosts(self) -> int:
        """Machines, of four chips each."""
        return self.chips // CHIPS_PER_HOST


def hbm_gib() -> float:
    """What a program may fill of a chip: 30.75 GiB, or less as $TRM_XLA_HBM_GIB says. Raises UserError."""
    given = os.environ.get(HBM_VARIABLE, str(HBM_GIB))
    try:
        bound = float(given)
    except ValueError:
        bound = 0.0
    if not 0 < bound <= HBM_GIB:
        raise UserError(f"{HBM_VARIABLE}={given}: it must be a number of GiB above 0 and not above {HBM_GIB}")
    return bound


def evaluated(config: RunConfig, where: Slice) -> int | None:
    """Puzzles that a job on the slice evaluates: the test puzzles on one host (None: all there are); on more hosts
    only those of the validation between training steps."""
    return config.data.test_puzzles if where.chips <= CHIPS_PER_HOST else config.data.validation_puzzles


def parse_slice(name: str) -> Slice:
    """The slice called v4-8, v4-16, ...; `chip`: one chip of a host. Raises UserError for another name."""
    if name == "chip":
        return Slice(name, 1, f"v4:{SHAPES[8]}")
    known = {f"v4-{cores}": cores for cores in SHAPES}
    if name not in known:
        raise UserError(f"no TPU slice {name!r} is known here: {', '.join(known)} are")
    cores = known[name]
    return Slice(name, cores // 2, f"v4:{SHAPES[cores]}")
