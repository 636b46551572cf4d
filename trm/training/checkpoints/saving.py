"""Saving and resuming a run: progress, checkpoints and weight snapshots."""

import logging
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from trm.backends.base import Backend
from trm.study.schema import PlacementConfig, RunConfig
from trm.study.text import bytes_text
from trm.training.checkpoints.folder import CheckpointFolder, Loaded, check_same_run, prune, save_checkpoint
from trm.training.state import TrainState, row_axis

log = logging.getLogger("trm")
CARRY_LIMIT = 512 * 2**20
"""Bytes of batch slots above which checkpoints leave them out; after a resume the slots take new rows."""


@dataclass
class Record:
    """A run's progress, except its tensors."""

    done: int = 0
    """Completed steps."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """History so far."""
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """Weight snapshots by number, from 1."""
    best: dict[str, Any] | None = None
    """Step and validation accuracy of the best checkpoint."""
    wall_seconds: float = 0.0
    """Seconds spent in the training loop by earlier processes."""
    cpu_seconds: float = 0.0
    """CPU seconds of earlier processes, from their start."""
    resumes: int = 0
    """Number of resumes."""
    pending: bool = False
    """Whether step `done` still has to be reported and validated."""


class Saver:
    """Saves and restores the checkpoints of one run."""

    def __init__(self, folder: CheckpointFolder, backend: Backend, identity: dict[str, Any]):
        self.folder, self.backend, self.identity = folder, backend, identity
        self._carry_dropped = False
        if backend.rank == 0:
            folder.on_published = tell_progress
        self.saved_at = time.monotonic()

    def resume(self, loaded: Loaded, state: TrainState, record: Record) -> None:
        """Restore a checkpoint.

        Raises:
            UserError: it belongs to another run.
        """
        check_same_run(self.folder, loaded, self.identity)
        saved = {
            "ema_steps": torch.tensor(math.inf)
        } | loaded.state  # before 1.1: an EMA that started at the weights
        state.load_shared(saved, self.backend)
        if loaded.carry is not None:
            first = self.backend.worker * state.local_batch
            part = {
                name: tensor.narrow(row_axis(name), first, state.local_batch)
                for name, tensor in loaded.carry.items()
            }
            state.load_carry(part, self.backend)
        elif self.backend.rank == 0:
            log.warning("the checkpoint has no batch slots: all slots take new rows")
        meta = loaded.meta
        record.done, record.rows, record.best = loaded.step, meta["history"], meta["best"]
        record.wall_seconds, record.resumes = meta["wall_seconds"], meta["resumes"] + 1
        record.cpu_seconds, record.pending = meta.get("cpu_seconds", 0.0), meta["pending"]
        for k in meta["snapshots"]:
            record.snapshots[k] = load(self.folder.read_extra(f"snapshot-{k}.safetensors"))

    def snapshot(self, k: int, state: TrainState, record: Record) -> None:
        fetched = self.backend.fetch_all(state.layout.views(state.params))
        record.snapshots[k] = {name: tensor.clone() for name, tensor in fetched.items()}
        if self.backend.rank == 0:
            self.folder.write_extra(f"snapshot-{k}.safetensors", save(record.snapshots[k]))

    def save(self, state: TrainState, record: Record, wall_seconds: float) -> None:
        """Write a checkpoint of the current step and delete those no longer kept."""
        size = self.backend.world * state.carry_bytes()
        keep = size <= CARRY_LIMIT
        if not keep:
            if not self._carry_dropped and self.backend.rank == 0:
                log.warning(
                    "the batch slots take %s, more than %s: they are not saved, and after a resume all slots take new "
                    "rows",
                    *(bytes_text(size), bytes_text(CARRY_LIMIT)),
                )
            self._carry_dropped = True
        meta = {
            "identity": self.identity,
            "history": record.rows,
            "best": record.best,
            "wall_seconds": wall_seconds,
            "cpu_seconds": record.cpu_seconds + time.process_time(),
            "resumes": record.resumes,
            "pending": record.pending,
            "snapshots": sorted(record.snapshots),
        }
        save_checkpoint(self.folder, self.backend, record.done, *state.on_host(self.backend, keep), meta)
        if self.backend.rank == 0:
            prune(self.folder, record.best["step"] if record.best else None)
        best = record.best if record.best and record.best["step"] == record.done else None
        self.folder.saved(record.done, best["eval/exact_accuracy"] if best else None)
        self.saved_at = time.monotonic()


def tell_progress(step: int) -> None:
    """Tell the TPU executor the newest published step: it counts relaunches without a newer one."""
    if progress := os.environ.get("TPU_PROGRESS_FILE"):
        Path(progress).write_text(str(step))


def resume_identity(config: RunConfig, recipe_version: int, dataset: Any, precision: str) -> dict[str, Any]:
    """What must be equal to resume from a checkpoint; `precision` is the resolved one."""
    full = config.model_dump(mode="json")
    full["data"].pop("files")  # identified by their checksums
    if config.placement == PlacementConfig():
        full.pop("placement")  # as in the fingerprint
    return {"recipe_version": recipe_version, "config": full, "dataset": dataset, "precision": precision}
