"""A checkpoint in its compact form: small enough to carry between machines by hand.

Weights and their average stay float32, the optimiser's moments are rounded to bfloat16, the batch slots are left
out (after a resume all slots take new rows). `planes` makes that smaller and loses nothing: the average is
stored by its distance from the weights. The file is cut into parts of a size that can be chosen.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from trm.errors import UserError
from trm.training.checkpoints.folder import COMPACT, MANIFEST, CheckpointFolder, read_checkpoint
from trm.training.checkpoints.planes import UNSIGNED, decode, encode, inflated

STATE = "compact-"
MOMENTS = ("moment1", "moment2")
NEAR = {"ema": "params"}
"""Tensors that are almost another one."""
BESIDE = {"moment1": "moment2"}
"""Tensors whose exponents follow another one's."""
LEVELLED = ("moment2",)
"""Tensors whose exponents depend on row and column."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.uint8,
    )
}


def packed(state: dict[str, Tensor]) -> bytes:
    """The state's tensors as one file: moments in bfloat16, all else to the bit, in deflated planes."""
    state = {name: tensor.to(torch.bfloat16) if name in MOMENTS else tensor for name, tensor in state.items()}
    bits = {name: _bits(tensor) for name, tensor in state.items()}
    about, planes = {}, {}
    for name, tensor in state.items():
        about[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), *_relations(name, bits)]
        for k, plane in enumerate(encode(bits[name], **_arrays(about[name][2:], bits))):
            planes[f"{name}.{k}"] = torch.from_numpy(plane.copy())
    header = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    return save(planes | {"about": header})


def unpacked(data: bytes) -> dict[str, Tensor]:
    """The tensors of `packed`. Raises ValueError where the planes are not what the header says."""
    planes = load(data)
    about: dict[str, Any] = json.loads(planes["about"].numpy().tobytes())
    state: dict[str, Tensor] = {}
    bits: dict[str, np.ndarray] = {}
    # what others refer to comes first: it refers to nothing itself
    for name in sorted(about, key=lambda name: any(about[name][2:4])):
        dtype, shape, *relations = about[name]
        count, width = int(np.prod(shape, dtype=np.int64)), DTYPES[dtype].itemsize
        own = [planes[f"{name}.{k}"].numpy() for k in range(width + 2 * relations[2])]
        bits[name] = decode(own, count, width, **_arrays(relations, bits))
        state[name] = torch.from_numpy(bits[name]).view(DTYPES[dtype]).reshape(shape)
    return {name: state[name] for name in about}


def _bits(tensor: Tensor) -> np.ndarray:
    """Unsigned integers [numel]."""
    data = tensor.detach().cpu().contiguous().reshape(-1)
    return data.view(torch.uint8).numpy().view(UNSIGNED[tensor.element_size()])


def _relations(name: str, bits: dict[str, np.ndarray]) -> tuple[str, str, bool]:
    """Names of the tensors that this one is near and beside ("": none), and whether its exponents are levelled."""

    def usable(other: str) -> str:
        same = other in bits and bits[other].dtype == bits[name].dtype and len(bits[other]) == len(bits[name])
        return other if same else ""

    return usable(NEAR.get(name, "")), usable(BESIDE.get(name, "")), name in LEVELLED


def _arrays(relations: list[Any], bits: dict[str, np.ndarray]) -> dict[str, Any]:
    near, beside, level = relations
    return {"near": bits[near] if near else None, "beside": bits[beside] if beside else None, "level": level}


def unpacked_first(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file of the first form: plain byte planes, the least significant one first."""
    planes = load(data)
    state = {}
    for name, (dtype, shape) in json.loads(planes["about"].numpy().tobytes()).items():
        count, width = int(np.prod(shape, dtype=np.int64)), DTYPES[dtype].itemsize
        columns = np.empty((count, width), np.uint8)
        for place in range(width):
            columns[:, place] = inflated(planes[f"{name}.{place}"].numpy(), count)
        state[name] = torch.from_numpy(columns).reshape(-1).view(DTYPES[dtype]).reshape(shape)
    return state


def export(source: CheckpointFolder, target: CheckpointFolder, part_mb: float) -> tuple[int, int]:
    """Write the newest checkpoint of `source` into `target` in compact form; returns its step and its bytes.

    `part_mb`: largest size of a file, in MiB.

    Raises:
        UserError: where there is no whole checkpoint, or `target` holds checkpoints already.
    """
    if not source.steps():
        raise UserError(f"{source.root} holds no checkpoint: give a folder below results/checkpoints")
    if target.steps():
        raise UserError(f"{target.root} already holds checkpoints: give another folder for the compact form")
    step = source.steps()[-1]
    try:
        loaded = read_checkpoint(source, step)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the checkpoint {source.folder(step)} is broken ({error}); delete it and export the one before"
        ) from None
    data, part = packed(loaded.state), max(1, int(part_mb * 2**20))
    files = {
        f"{STATE}{k:03d}": data[first : first + part] for k, first in enumerate(range(0, len(data), part))
    }
    files["meta.json"] = json.dumps(loaded.meta).encode()
    for k in loaded.meta["snapshots"]:
        target.write_extra(f"snapshot-{k}.safetensors", source.read_extra(f"snapshot-{k}.safetensors"))
    for name, content in files.items():
        target.write(step, name, content)
    manifest: dict[str, Any] = {"format": COMPACT, "step": step}
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    target.write(step, MANIFEST, json.dumps(manifest, indent=1).encode())
    return step, sum(map(len, files.values()))
