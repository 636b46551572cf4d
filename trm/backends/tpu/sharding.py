"""Marking tensors for XLA's partitioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def marked(tensor: Tensor, mesh: Any, spec: tuple[str | None, ...]) -> Tensor:
    """The tensor with its dimensions sharded over the mesh by `spec` (None: replicated).

    Only the result of an operation is marked as part of the program: torch_xla would copy a tensor that has data to the
    host and back.
    """
    import torch_xla.distributed.spmd as spmd

    result = tensor & True if tensor.dtype == torch.bool else tensor * 1  # adding 0 would change -0
    sharded: Tensor = spmd.mark_sharding(result, mesh, spec).global_tensor
    return sharded
