"""The CPU backend: steps run eagerly, workers communicate over gloo."""

import os
import resource
import sys

import torch
from torch import Tensor

from trm.backends.base import Backend, Precision, precision_of
from trm.backends.cpu import library
from trm.backends.workers import Workers, world_from_environment
from trm.provenance import processor


def host_memory() -> int:
    """Bytes of memory of this machine, or the limit of its container or this process if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    total = total if allowed == resource.RLIM_INFINITY else min(total, allowed)
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            text = file.read().strip()
        return total if text == "max" else min(total, int(text))
    except (OSError, ValueError):
        return total


def peak_resident_bytes() -> int:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class CpuBackend(Backend):
    """The host's CPU."""

    name = "cpu"
    implementation = "fused"
    own_memory = False
    chunk = 1 << 16  # five float32 buffers of this length stay in a core's cache

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.rank, self.world = world_from_environment()
        self.workers = Workers("gloo", self.rank, self.world) if self.world > 1 else None

    def precision(self, requested: str) -> Precision:
        return precision_of(requested, library.fast_bfloat16(), "this CPU")

    def place(self, tensor: Tensor) -> Tensor:
        return tensor

    def device_name(self) -> str:
        return processor()[0]

    def peak_memory(self) -> int:
        return peak_resident_bytes()

    def memory_limit(self) -> int:
        return host_memory()
