"""The CUDA backend: one process per GPU, workers over NCCL, the network through torch.compile."""

import logging
import os
from importlib.util import find_spec

import torch
from torch import Tensor

from trm.backends.base import Backend, Precision, precision_of
from trm.backends.cuda.gpus import claim, why_no_gpu
from trm.backends.workers import Workers, world_from_environment
from trm.errors import UserError

log = logging.getLogger("trm")


class CudaBackend(Backend):
    """One NVIDIA GPU."""

    name = "cuda"
    stop_every = 10

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            reason = why_no_gpu(torch.__version__, torch.version.cuda)
            raise UserError(f"backend cuda: {reason}; or choose the backend cpu")
        self.rank, self.world = world_from_environment()
        self.device = torch.device("cuda", self._own_gpu())
        torch.cuda.set_device(self.device)
        sum_in_float32()
        self.implementation = implementation(torch.cuda.get_device_capability(self.device))
        self.workers = Workers("nccl", self.rank, self.world) if self.world > 1 else None

    def _own_gpu(self) -> int:
        """Claim a GPU that no other trm process uses. Raises UserError."""
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if count == 1:
            local = 0  # the launcher shows each worker its own GPU
        if local >= count:
            raise UserError(
                f"worker {local} of this machine has no GPU: there are {count}, so start {count} workers"
            )
        names = [f"gpu-{torch.cuda.get_device_properties(k).uuid}" for k in range(count)]
        index, shared = claim(names, local)
        if shared and self.world > 1:
            raise UserError(
                "other trm processes use the GPUs of this machine: wait for them, or start fewer workers"
            )
        if shared:
            log.warning("other trm processes use every GPU of this machine; this one shares GPU %d", index)
        return index

    def precision(self, requested: str) -> Precision:
        fast = torch.cuda.get_device_capability(self.device)[0] >= 8
        return precision_of(requested, fast, "this GPU")

    def place(self, tensor: Tensor) -> Tensor:
        # from pinned memory the host does not wait for the copy
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def memory_limit(self) -> int:
        return torch.cuda.get_device_properties(self.device).total_memory


def sum_in_float32() -> None:
    """Have cuBLAS, which splits products over their rows, sum the parts in float32, not in 16 bits."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def implementation(capability: tuple[int, int]) -> str:
    """torch.compile of the plain network, where triton and compute capability 8.0 are there."""
    return "compiled" if capability >= (8, 0) and find_spec("triton") else "plain"
