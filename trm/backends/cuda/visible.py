"""Which GPUs a process may use, and why there are none. `visible_gpus` needs no torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

DRIVERS = {12: 525, 13: 580}
"""Oldest driver for each major version of CUDA (NVIDIA, CUDA compatibility)."""


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that jobs of this machine may use, at least 1: what $CUDA_VISIBLE_DEVICES names, else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return max(1, len(list(devices.glob("nvidia[0-9]*"))))
    names = [name.strip() for name in named.split(",")]
    if names[0].startswith("MIG"):
        return 1  # CUDA uses the first slice only
    end = next((k for k, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return max(1, end)  # CUDA ends the list at the first invalid name


def why_no_gpu(
    version: str,
    cuda: str | None,
    devices: Path = Path("/dev"),
    driver: Path = Path("/proc/driver/nvidia/version"),
) -> str:
    """The reason why torch finds no GPU, and what to do.

    Args:
        version: torch's version.
        cuda: the version of CUDA that it was built for; None: a build for processors.
        devices: folder of the device files.
        driver: where the driver says its version.
    """
    if cuda is None:
        return f"torch {version} is a CPU build: install one for CUDA (docs/cluster.md)"
    found = re.search(r"Kernel Module.*?\s(\d+)\.[\d.]+", driver.read_text()) if driver.exists() else None
    if found is None:
        return "this machine has no NVIDIA driver: run on a machine with a GPU"
    needed = DRIVERS.get(int(cuda.split(".")[0]), 0)
    if int(found[1]) < needed:
        return (
            f"the driver {found[1]} is too old for CUDA {cuda}, which torch {version} was built for and which needs "
            f"{needed} or newer: update it, or install a torch for an older CUDA (docs/cluster.md)"
        )
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None or not list(devices.glob("nvidia[0-9]*")):
        limit = "" if named is None else f" (CUDA_VISIBLE_DEVICES={named})"
        return f"no device is visible{limit}: request a GPU, in Slurm with --gres=gpu:1"
    return "CUDA does not start, though there is a device: see what nvidia-smi says"
