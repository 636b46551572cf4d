"""Checkpoints: one folder per step, made valid by a manifest of checksums that is written last.

`step-00000400/` holds `state.safetensors` (weights, average, moments, puzzle table, step count, metric sums),
`carry-<worker>.safetensors` (each worker's batch slots), `meta.json` (config, history, resolved precision) and
`manifest.json`. No random state is stored: sampling and exploration are pure functions of (seed, step).
`trm.training.checkpoints.compact` writes a smaller form of the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from trm.devices.base import Backend
from trm.errors import UserError
from trm.io import write_bytes
from trm.study.schema import RunConfig
from trm.training.checkpoints.compact import STATE, unpacked

log = logging.getLogger("trm")
MANIFEST = "manifest.json"
FORMAT = 1
COMPACT = 4  # trm.training.checkpoints.compact


class Loaded(NamedTuple):
    """A checkpoint read back, on the host."""

    step: int
    state: dict[str, Tensor]
    carry: dict[str, Tensor] | None
    """All workers' slots joined; None where they were left out."""
    meta: dict[str, Any]


class CheckpointFolder:
    """A folder of checkpoints; all access to their files goes through here.

    A checkpoint exists when its manifest does, so the same order of writes is safe on a bucket.
    """

    def __init__(self, root: Path):
        self.root = Path(root)

    def steps(self) -> list[int]:
        """Steps with a manifest, oldest first."""
        found = self.root.glob(f"step-*/{MANIFEST}")
        return sorted(int(path.parent.name.split("-")[1]) for path in found)

    def folder(self, step: int) -> Path:
        """The folder of a step."""
        return self.root / f"step-{step:08d}"

    def write(self, step: int, name: str, data: bytes) -> None:
        """One file of a checkpoint, durable on return."""
        write_bytes(self.folder(step) / name, data)

    def read(self, step: int, name: str) -> bytes:
        """One file of a checkpoint."""
        return (self.folder(step) / name).read_bytes()

    def delete(self, step: int) -> None:
        """Remove a checkpoint, its manifest first."""
        (self.folder(step) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder(step), ignore_errors=True)

    def unfinished(self) -> list[int]:
        """Steps with a folder but no manifest, oldest first: what a kill in the middle of a save left."""
        found = {int(path.name.split("-")[1]) for path in self.root.glob("step-*")}
        return sorted(found - set(self.steps()))

    def tidy(self) -> None:
        """Remove temporary files of killed processes; only while no other process writes here."""
        for path in (*self.root.glob(".*.tmp"), *self.root.glob(".upload-*"), *self.root.glob(".restore-*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def saved(self, step: int, score: float | None) -> None:
        """Called by every worker once a checkpoint is complete; `score`: its validation accuracy if it is the best."""

    def write_extra(self, name: str, data: bytes) -> None:
        """A file beside the checkpoints (snapshots, the live history)."""
        write_bytes(self.root / name, data)

    def read_extra(self, name: str) -> bytes:
        """A file beside the checkpoints."""
        return (self.root / name).read_bytes()


def _checksum(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(hashlib.sha256(data).digest()), dtype=torch.uint8)


def save_checkpoint(
    folder: CheckpointFolder,
    backend: Backend,
    step: int,
    state: dict[str, Tensor],
    carry: dict[str, Tensor] | None,
    meta: dict[str, Any],
) -> None:
    """Write one checkpoint from host tensors: every worker its slots, the first all else, the manifest last.

    Called by all processes. An older attempt at the same step is replaced.
    """
    if backend.rank == 0:
        (folder.folder(step) / MANIFEST).unlink(missing_ok=True)
    backend.gather(torch.zeros(1))  # no worker writes into a checkpoint whose manifest is still there
    checksum = torch.zeros(32, dtype=torch.uint8)
    if (
        carry is not None and backend.rank == backend.worker
    ):  # under SPMD the first process holds the one worker's
        data = save(carry)
        folder.write(step, f"carry-{backend.worker}.safetensors", data)
        checksum = _checksum(data)
    checksums = backend.gather(checksum)
    if backend.rank == 0:
        sums = {}
        if carry is not None:
            sums = {
                f"carry-{worker}.safetensors": bytes(sha.tolist()).hex()
                for worker, sha in enumerate(checksums[: backend.world])
            }
        files = {"state.safetensors": save(state), "meta.json": json.dumps(meta).encode()}
        for name, data in files.items():
            folder.write(step, name, data)
            sums[name] = hashlib.sha256(data).hexdigest()
        manifest = {"format": FORMAT, "step": step, "sha256": sums}
        folder.write(step, MANIFEST, json.dumps(manifest, indent=1).encode())
    backend.gather(torch.zeros(1))


def prune(folder: CheckpointFolder, keep: int, best: int | None) -> None:
    """Delete all but the `keep` newest checkpoints and the best one, and incomplete ones."""
    for step in folder.unfinished():
        folder.delete(step)
    for step in folder.steps()[:-keep]:
        if step != best:
            folder.delete(step)


def read_checkpoint(folder: CheckpointFolder, step: int) -> Loaded:
    """One checkpoint, verified. Raises OSError, ValueError, KeyError or TypeError if it is damaged."""
    manifest = json.loads(folder.read(step, MANIFEST))
    form = manifest["format"]
    if form not in (FORMAT, COMPACT):
        raise ValueError(
            f"its format {form} is not supported by this version, which reads {FORMAT} and {COMPACT}"
        )
    contents = {}
    for name, sha in manifest["sha256"].items():
        contents[name] = folder.read(step, name)
        if hashlib.sha256(contents[name]).hexdigest() != sha:
            raise ValueError(f"{name} does not have the checksum of the manifest")
    meta = json.loads(contents["meta.json"])
    if form != FORMAT:
        parts = sorted(name for name in contents if name.startswith(STATE))
        return Loaded(step, unpacked(b"".join(contents[name] for name in parts)), None, meta)
    carries = [load(contents[name]) for name in sorted(_carry_names(contents), key=_carry_rank)]
    carry = None
    if carries:
        carry = {
            name: torch.cat([part[name] for part in carries], dim=1 if name in ("z_H", "z_L") else 0)
            for name in carries[0]
        }
    return Loaded(step, load(contents["state.safetensors"]), carry, meta)


def _carry_names(names: dict[str, bytes]) -> list[str]:
    return [name for name in names if name.startswith("carry-")]


def _carry_rank(name: str) -> int:
    return int(name.removeprefix("carry-").removesuffix(".safetensors"))


def load_newest(folder: CheckpointFolder) -> Loaded | None:
    """The newest complete checkpoint, or None; damaged ones are skipped with a warning."""
    for step in reversed(folder.steps()):
        try:
            return read_checkpoint(folder, step)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "checkpoint %s is broken (%s); falling back to the one before", folder.folder(step), error
            )
        except (
            Exception
        ) as error:  # safetensors raises its own type, which has no public name in all versions
            if type(error).__name__ != "SafetensorError":
                raise
            log.warning(
                "checkpoint %s is broken (%s); falling back to the one before", folder.folder(step), error
            )
    return None


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            found = first_difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return None
    return None if old == new else (path, old, new)


def _with_new_knobs(config: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's configuration with the knobs added since it was written: they are neutral at their defaults."""
    known = RunConfig.model_validate(config).model_dump(mode="json", exclude={"data": {"files"}})
    return {key: known[key] | value if isinstance(value, dict) else value for key, value in config.items()}


def check_same_run(folder: CheckpointFolder, loaded: Loaded, identity: dict[str, Any]) -> None:
    """Refuse to resume from another run's checkpoint.

    Raises:
        UserError: names the first differing field and both values.
    """
    written = loaded.meta["identity"]
    found = first_difference(written | {"config": _with_new_knobs(written["config"])}, identity)
    if found:
        field, old, new = found
        raise UserError(
            f"the checkpoint {folder.folder(loaded.step)} is of another run: {field} is {old!r} there and {new!r} "
            f"here; give another --checkpoints folder, or delete that one"
        )
