"""The compact form of a checkpoint: small enough to carry between machines by hand.

Adam's moments are rounded to bfloat16 and the batch slots are left out (on resume all slots take new rows); weights
and EMA are kept exactly. The tensors are one safetensors file, deflated, and cut into parts of a given size. Two
rearrangements, without loss, are what makes deflating worthwhile: tensors are stored byte by byte (all first bytes,
then all second bytes, ...), and the EMA as its exclusive or with the weights, from which it differs little.
"""

from __future__ import annotations

import zlib

import torch
from safetensors.torch import load, save
from torch import Tensor

STATE = "compact-"
MOMENTS = ("moment1", "moment2")


def packed(state: dict[str, Tensor]) -> bytes:
    """The tensors as one compressed file: moments in bfloat16, everything else exact."""
    files = {}
    for name, tensor in _against_weights(state).items():
        tensor = tensor.to(torch.bfloat16) if name in MOMENTS else tensor
        size = tensor.element_size()
        columns = tensor.contiguous().reshape(-1).view(torch.uint8).reshape(tensor.numel(), size)
        dtype = str(tensor.dtype).removeprefix("torch.")
        files[f"{name}:{dtype}"] = columns.t().contiguous().reshape(size, *tensor.shape)
    return zlib.compress(save(files))


def unpacked(compressed: bytes) -> dict[str, Tensor]:
    """The tensors of `packed`."""
    state = {}
    for key, planes in load(zlib.decompress(compressed)).items():
        name, dtype = key.split(":")
        data = planes.reshape(len(planes), planes[0].numel()).t().flatten()
        state[name] = data.view(getattr(torch, dtype)).reshape(planes.shape[1:])
    return _against_weights(state)


def _against_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with the EMA as its bitwise XOR with the weights; applied twice, it restores the EMA."""
    params, ema = state.get("params"), state.get("ema")
    if params is None or ema is None or (params.shape, params.dtype) != (ema.shape, torch.float32):
        return state
    return state | {"ema": (ema.view(torch.int32) ^ params.view(torch.int32)).view(torch.float32)}
