"""How many GPUs this machine has, for the GPU profile. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that jobs of this machine may use, at least 1: what $CUDA_VISIBLE_DEVICES names, else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return max(1, len([name for name in named.split(",") if name.strip()]))
    return max(1, len(list(devices.glob("nvidia[0-9]*"))))
