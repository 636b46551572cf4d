"""Checkpoints: one folder per step, complete once its manifest of checksums is written.

`step-00000400/` holds `state.safetensors` (weights, EMA, moments, puzzle table, step count, metric sums),
`carry-<worker>.safetensors` (batch slots), `meta.json` (config, history, resolved precision) and `manifest.json`. No
random state is stored, since sampling and exploration are pure functions of (seed, step).
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from trm.backends.base import Backend
from trm.errors import UserError
from trm.io import differences, write_bytes
from trm.storage.mirror import KEPT
from trm.study.schema import RunConfig
from trm.training.state import join_carries

log = logging.getLogger("trm")
MANIFEST = "manifest.json"
FORMAT = 1
DAMAGED = (FileNotFoundError, ValueError, KeyError, TypeError, SafetensorError)
"""Errors of `read_checkpoint` on a damaged checkpoint."""


class Loaded(NamedTuple):
    """A checkpoint in host memory."""

    step: int
    state: dict[str, Tensor]
    carry: dict[str, Tensor] | None
    """The slots of all workers; None if they were not saved."""
    meta: dict[str, Any]


class CheckpointFolder:
    """A folder of checkpoints. A checkpoint exists once its manifest does; its files are accessed only through here."""

    def __init__(self, root: Path):
        self.root = Path(root)
        self.on_published: Callable[[int], None] = lambda step: None
        """Called with the newest step that a job on another machine would resume from."""

    def steps(self) -> list[int]:
        """Steps with a manifest, oldest first."""
        manifests = self.root.glob(f"step-*/{MANIFEST}")
        return sorted(int(path.parent.name.split("-")[1]) for path in manifests)

    def folder(self, step: int) -> Path:
        """The folder of a step."""
        return self.root / f"step-{step:08d}"

    def write(self, step: int, name: str, data: bytes) -> None:
        """Write one file of a checkpoint; it is durable on return."""
        write_bytes(self.folder(step) / name, data)

    def read(self, step: int, name: str) -> bytes:
        """Read one file of a checkpoint.

        Raises:
            FileNotFoundError: there is none.
            UserError: it cannot be read; nothing says that it is damaged.
        """
        path = self.folder(step) / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error.strerror}): fix the disk or its permissions, or delete this checkpoint."
            ) from error

    def delete(self, step: int) -> None:
        """Remove a checkpoint, its manifest first."""
        (self.folder(step) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder(step), ignore_errors=True)

    def started(self) -> list[int]:
        """Steps with a folder, oldest first; those without a manifest were left by a process that was killed."""
        return sorted(int(path.name.split("-")[1]) for path in self.root.glob("step-*"))

    def tidy(self) -> None:
        """Remove temporary files of killed processes; no other process may be writing here."""
        for path in (*self.root.glob(".*.tmp"), *self.root.glob(".upload-*"), *self.root.glob(".restore-*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def saved(self, step: int, score: float | None) -> None:
        """Called by all workers once a checkpoint is complete; `score`: its validation accuracy if it is the best."""
        self.on_published(step)

    def write_extra(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write a file beside the checkpoints (a snapshot, the live history)."""
        write_bytes(self.root / name, data, durable)

    def read_extra(self, name: str) -> bytes:
        """Read a file beside the checkpoints."""
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
    """Write a checkpoint from host tensors: each worker its slots, the first process everything else.

    Called by all processes. Replaces an earlier attempt at the same step.
    """
    if backend.rank == 0:
        (folder.folder(step) / MANIFEST).unlink(missing_ok=True)
    backend.gather(torch.zeros(1))  # nobody writes before the old manifest is gone
    checksum = torch.zeros(32, dtype=torch.uint8)
    # under SPMD all processes are one worker, whose slots the first one writes
    if carry is not None and backend.rank == backend.worker:
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


def prune(folder: CheckpointFolder, best: int | None) -> None:
    """Delete incomplete checkpoints, and all others but the `KEPT` newest and the best."""
    complete = folder.steps()
    for step in folder.started():
        if step not in complete or (step not in complete[-KEPT:] and step != best):
            folder.delete(step)


def read_checkpoint(folder: CheckpointFolder, step: int) -> Loaded:
    """Read and verify a checkpoint. Raises one of `DAMAGED` if it is damaged."""
    manifest = json.loads(folder.read(step, MANIFEST))
    form = manifest["format"]
    if form != FORMAT:
        raise ValueError(f"its format {form} is not supported by this version, which reads {FORMAT}")
    contents = {}
    for name, sha in manifest["sha256"].items():
        contents[name] = folder.read(step, name)
        if hashlib.sha256(contents[name]).hexdigest() != sha:
            raise ValueError(f"{name} does not have the checksum of the manifest")
    meta = json.loads(contents["meta.json"])
    # one per worker, in the order of their numbers
    carries = [name for name in (f"carry-{k}.safetensors" for k in range(len(contents))) if name in contents]
    carry = join_carries([load(contents[name]) for name in carries]) if carries else None
    return Loaded(step, load(contents["state.safetensors"]), carry, meta)


def load_newest(folder: CheckpointFolder) -> Loaded | None:
    """The newest complete checkpoint, or None; damaged ones are skipped with a warning."""
    for step in reversed(folder.steps()):
        try:
            return read_checkpoint(folder, step)
        except DAMAGED as error:
            log.warning(
                "checkpoint %s is damaged (%s); falling back to the one before", folder.folder(step), error
            )
    return None


def _with_new_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's config with the fields added since it was written; their defaults change nothing."""
    known = RunConfig.model_validate(config).model_dump(mode="json", exclude={"data": {"files"}})
    return {key: known[key] | value if isinstance(value, dict) else value for key, value in config.items()}


def check_same_run(folder: CheckpointFolder, loaded: Loaded, identity: dict[str, Any]) -> None:
    """Check that a checkpoint belongs to this run.

    Raises:
        UserError: it does not; names the first field that differs.
    """
    saved = loaded.meta["identity"]
    known = {
        key: value for key, value in saved["dataset"].items() if value != ""
    }  # as earlier versions wrote it
    same = {"config": _with_new_fields(saved["config"]), "dataset": identity["dataset"] | known}
    found = differences(saved | same, identity)
    if found:
        field, (old, new) = next(iter(found.items()))
        raise UserError(
            f"the checkpoint {folder.folder(loaded.step)} is of another run: {field} is {old!r} there and {new!r} "
            f"here; give another --checkpoints folder, or delete that one"
        )
