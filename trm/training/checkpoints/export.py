"""Write a checkpoint in its compact form (`compact`), split into files of a given size."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trm.errors import UserError
from trm.training.checkpoints.compact import STATE, packed
from trm.training.checkpoints.folder import COMPACT, DAMAGED, MANIFEST, CheckpointFolder, read_checkpoint


def export(source: CheckpointFolder, target: CheckpointFolder, part_mb: float) -> tuple[int, int]:
    """Write the newest checkpoint of `source` into `target` in compact form; returns its step and bytes.

    `part_mb`: maximum size of a file, in MiB.

    Raises:
        UserError: `source` has no complete checkpoint, or `target` already has checkpoints.
    """
    steps = source.steps()
    if not steps:
        raise UserError(f"{source.root} holds no checkpoint: give a folder below results/checkpoints")
    if target.steps():
        raise UserError(f"{target.root} already holds checkpoints: give another folder for the compact form")
    step = steps[-1]
    try:
        loaded = read_checkpoint(source, step)
    except DAMAGED as error:
        raise UserError(
            f"the checkpoint {source.folder(step)} is damaged ({error}); delete it and export the one before"
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
