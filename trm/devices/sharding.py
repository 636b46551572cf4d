"""Marking tensors for XLA's partitioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def marked(tensor: Tensor, mesh: Any, spec: tuple[str | None, ...]) -> Tensor:
    """The tensor, its dimensions laid out over the mesh as `spec` says (None: whole on every device).

    Only the result of an operation is marked as part of the program: torch_xla would take a tensor that has its data
    to the host and back.
    """
    import torch_xla.distributed.spmd as spmd

    result = tensor & True if tensor.dtype == torch.bool else tensor * 1  # -0 + 0 would lose its sign
    sharded: Tensor = spmd.mark_sharding(result, mesh, spec).global_tensor
    return sharded
