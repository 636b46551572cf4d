"""The compact form of a checkpoint, small enough to copy between machines by hand.

Adam's moments are rounded to bfloat16 and batch slots are omitted (after a resume all slots take new rows); weights and
EMA stay exact. The tensors form one deflated safetensors file, which is split into parts of a given size. Two lossless
transforms make it compressible: bytes are grouped by position (all first bytes, then all second bytes, ...), and the
EMA is stored as its XOR with the weights, which it is close to.
"""

from __future__ import annotations

import zlib

import torch
from safetensors.torch import load, save
from torch import Tensor

STATE = "compact-"
MOMENTS = ("moment1", "moment2")


def packed(state: dict[str, Tensor]) -> bytes:
    """Compress a state into one file."""
    files = {}
    for name, tensor in _against_weights(state).items():
        tensor = tensor.to(torch.bfloat16) if name in MOMENTS else tensor
        size = tensor.element_size()
        columns = tensor.contiguous().reshape(-1).view(torch.uint8).reshape(tensor.numel(), size)
        dtype = str(tensor.dtype).removeprefix("torch.")
        files[f"{name}:{dtype}"] = columns.t().contiguous().reshape(size, *tensor.shape)
    return zlib.compress(save(files))


def unpacked(compressed: bytes) -> dict[str, Tensor]:
    """The inverse of `packed`."""
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
