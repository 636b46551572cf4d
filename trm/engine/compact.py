"""A checkpoint in its compact form: small enough to carry between machines by hand.

Weights and their average stay float32, the optimiser's moments are rounded to bfloat16, the batch slots are left
out (after a resume all slots take new rows). Bytes of equal significance are put side by side and deflated, which
loses nothing. The file is cut into parts of a size that can be chosen.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from trm.engine.checkpoint import COMPACT, MANIFEST, CheckpointFolder, read_checkpoint
from trm.errors import UserError

STATE = "compact-"
MOMENTS = ("moment1", "moment2")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)
}


def packed(state: dict[str, Tensor]) -> bytes:
    """The state's tensors as one file: moments in bfloat16, each byte plane deflated where that makes it smaller."""
    planes, about = {}, {}
    for name, tensor in state.items():
        tensor = tensor.to(torch.bfloat16) if name in MOMENTS else tensor
        about[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        width = tensor.element_size()
        columns = tensor.contiguous().reshape(-1).view(torch.uint8).reshape(tensor.numel(), width).numpy()
        for place in range(width):
            plain = np.ascontiguousarray(columns[:, place])
            deflated = zlib.compress(plain.tobytes(), 1)
            kept = np.frombuffer(deflated, np.uint8).copy() if len(deflated) < len(plain) else plain
            planes[f"{name}.{place}"] = torch.from_numpy(kept)
    header = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    return save(planes | {"about": header})


def unpacked(data: bytes) -> dict[str, Tensor]:
    """The tensors of `packed`."""
    planes = load(data)
    state = {}
    for name, (dtype, shape) in json.loads(planes["about"].numpy().tobytes()).items():
        count, width = int(np.prod(shape, dtype=np.int64)), DTYPES[dtype].itemsize
        columns = np.empty((count, width), np.uint8)
        for place in range(width):
            plane = planes[f"{name}.{place}"].numpy()
            if len(plane) != count:
                plane = np.frombuffer(zlib.decompress(plane.tobytes()), np.uint8)
            columns[:, place] = plane
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
