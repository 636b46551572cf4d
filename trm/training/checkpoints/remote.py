"""A run's checkpoints under a lease, and their copy in a bucket.

Checkpoints are always written to a local folder. If their place is in a bucket they are copied there in the
background, and a job on another machine resumes from the newest complete one.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from trm.backends.base import Backend
from trm.errors import UserError
from trm.storage import is_remote, local_path, open_store
from trm.storage.base import Damaged, ObjectMissing
from trm.storage.cache import default_folder
from trm.storage.lease import Lease, LeaseLost
from trm.storage.mirror import Mirror, Snapshot
from trm.training.checkpoints.folder import DAMAGED, CheckpointFolder, read_checkpoint

log = logging.getLogger("trm")
Result = TypeVar("Result")
FAILED_UPLOADS = 3
"""Uploads of checkpoints that fail in a row before the run stops."""


class SharedFolder(CheckpointFolder):
    """A checkpoint folder that only one job writes at a time, copied to a bucket if `mirror` is given.

    Only the first worker has the `lease`, and only the first worker of each host the `mirror`.
    """

    def __init__(self, root: Path, lease: Lease | None, mirror: Mirror | None):
        super().__init__(root)
        self.lease, self.mirror = lease, mirror

    def write(self, step: int, name: str, data: bytes) -> None:
        """Write a file of a checkpoint. Raises LeaseLost if another job has taken over the run."""
        if self.lease is not None:
            self.lease.check()
        super().write(step, name, data)

    def write_extra(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write a file beside the checkpoints; it is uploaded with the next one."""
        super().write_extra(name, data, durable)
        if self.mirror is not None:
            self.mirror.put_extra(name, self.root / name)

    def saved(self, step: int, score: float | None) -> None:
        """Start uploading the checkpoint.

        Raises:
            UserError: `FAILED_UPLOADS` uploads in a row have failed.
        """
        mirror = self.mirror
        if mirror is None:
            super().saved(step, score)
            return
        mirror.on_published = self.on_published
        if len(mirror.failures) >= FAILED_UPLOADS:
            raise UserError(
                f"The last {len(mirror.failures)} uploads of checkpoints failed ({mirror.failures[-1]}), so training "
                "stops: what it does would be lost with this machine. Mend the bucket and start again."
            )
        for path in sorted(self.root.glob("tensorboard/*")):
            mirror.put_extra(f"tensorboard/{path.name}", path)
        for path in sorted({*self.root.glob("profile-*/**/*"), *self.root.glob("profile-*.json")}):
            if path.is_file():
                mirror.put_extra(str(path.relative_to(self.root)), path)
        mirror.push(self.folder(step), step=step, score=score)
        if mirror.part:  # the saver prunes the first host's folder
            for old in self.started()[: -mirror.keep]:
                self.delete(old)

    def bring_newest(self, backend: Backend) -> None:
        """Download the newest complete checkpoint, unless the local one is newer.

        Called by all workers; all hosts get the same step.
        """
        mirror = self.mirror
        newest = on_all_workers(
            backend, lambda: self._choose(mirror) if mirror and not backend.rank else -1, "resume"
        )
        chosen = torch.tensor([newest])
        backend.broadcast(chosen)
        step = int(chosen)

        def copy() -> None:
            if mirror is None:
                return
            if mirror.parts > 1:
                # later local files belong to a checkpoint that other hosts lack
                for later in self.started():
                    if later > step:
                        self.delete(later)
            if backend.rank and step >= 0:
                mirror.fetch(next(s for s in mirror.list() if s.step == step), self.root)
            mirror.fetch_extras(self.root)

        on_all_workers(backend, copy, "resume")

    def _choose(self, mirror: Mirror) -> int:
        """Make the newest complete checkpoint local and return its step; -1: there is none."""
        remote: dict[int, Snapshot] = {snapshot.step: snapshot for snapshot in mirror.list()}
        local = set(self.steps()) if mirror.parts == 1 else set()
        for step in sorted(local | set(remote), reverse=True):
            if step in local and self._complete(step):
                return step
            if step not in remote:
                continue
            try:
                mirror.fetch(remote[step], self.root)
            except (ObjectMissing, Damaged, ValueError, KeyError) as error:
                log.warning(
                    "checkpoint %s is unusable (%s): trying an older one",
                    mirror.store.url(remote[step].name),
                    error,
                )
                continue
            if self._complete(step):
                return step
        if remote:
            raise UserError(
                f"None of the {len(remote)} checkpoints below {mirror.store.uri} is complete: delete them to train "
                "from the start, or restore them from a backup."
            )
        return -1

    def _complete(self, step: int) -> bool:
        try:
            read_checkpoint(self, step)
        except DAMAGED as error:
            log.warning("checkpoint %s is damaged (%s)", self.folder(step), error)
            return False
        return True


def local_copy(uri: str) -> Path:
    """The local folder for the checkpoints of a bucket's address."""
    name = uri.rstrip("/").rpartition("/")[2]
    home = os.environ.get("TPU_SCRATCH") or default_folder() / "checkpoints"
    return Path(home) / f"{name}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"


def on_all_workers(backend: Backend, action: Callable[[], Result], what: str) -> Result:
    """Run `action` on every worker; if it fails on one, all of them raise instead of waiting for each other.

    The worker where it failed raises the original error, the others a UserError.
    """
    error: Exception | None = None
    try:
        result = action()
    except Exception as caught:
        error = caught
    failed = [bool(flag) for flag in backend.gather(torch.tensor([float(error is not None)]))]
    if error is not None:
        raise error
    if any(failed):
        raise UserError(
            f"worker {failed.index(True)} could not {what}: its log has the reason; training stops."
        )
    return result


@contextmanager
def open_checkpoints(uri: str, run: str, backend: Backend) -> Iterator[CheckpointFolder]:
    """The checkpoint folder of a run, leased to this job; on exit, uploads are awaited and the lease is released.

    Called by all workers.

    Raises:
        LeaseHeld: another job is writing this run.
        UserError: the bucket cannot be used, or none of its checkpoints is complete.
    """
    remote = is_remote(uri)
    store = open_store(uri)
    lease = Lease(store, run) if backend.rank == 0 else None
    on_all_workers(backend, lambda: lease.acquire(wait=not remote) if lease else None, "claim the run")
    mirror = None
    try:
        if lease:
            lease.keep()
        if remote and int(os.environ.get("LOCAL_RANK", "0")) == 0:
            here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            part, parts = backend.rank // here, backend.processes // here
            mirror = Mirror(store, part=part, parts=parts, lease=lease)
        folder = SharedFolder(local_copy(uri) if remote else local_path(uri), lease, mirror)
        if lease or mirror:
            folder.tidy()
        if remote:
            folder.bring_newest(backend)
        yield folder
    finally:
        try:
            if mirror is not None:
                _finish_uploads(mirror)
        finally:
            if lease:
                lease.release()


def _finish_uploads(mirror: Mirror) -> None:
    """Wait for uploads. A failure is only a warning: the result is uploaded separately and does not need them."""
    try:
        mirror.close()
    except LeaseLost:
        raise
    except UserError as error:
        log.warning("the last checkpoint is on this machine only: %s", error)
