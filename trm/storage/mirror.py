"""A copy of a run's checkpoints in a store, uploaded in the background and downloaded on another machine.

A checkpoint is a folder named after its step. Its files are uploaded to `<name>/<token>/`, which is unique to the push,
followed by a manifest with their checksums, on condition that there is none yet: a checkpoint is visible completely or
not at all. On several hosts each pushes its own part (`part` of `parts`); a checkpoint is complete once every part has
its manifest.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from trm.io import files_below, sha256_file
from trm.storage.base import ABSENT, Conflict, Damaged, ObjectMissing, Store, joined
from trm.storage.lease import Lease

log = logging.getLogger("trm")
_MANIFEST = re.compile(r"^(?P<name>[^/]+)/part-(?P<part>\d{5})-of-(?P<parts>\d{5})\.json$")
_EXTRA = "extra/"
_FORMAT = 1
KEPT = 5
"""Newest checkpoints that are kept, here and in a bucket, besides the best."""


@dataclass(frozen=True)
class Snapshot:
    """A complete checkpoint in the mirror."""

    name: str
    step: int
    score: float | None
    """Validation score; None: not measured."""
    parts: int


class Mirror:
    """Checkpoints of one run below `store`.

    Args:
        keep: newest checkpoints to keep, besides the one with the highest score; part 0 deletes the others.
        lease: renewed before each checkpoint is published, so that a job that lost the run publishes no more.
    """

    def __init__(
        self, store: Store, *, keep: int = KEPT, part: int = 0, parts: int = 1, lease: Lease | None = None
    ) -> None:
        self.store, self.keep, self.part, self.parts, self.lease = store, keep, part, parts, lease
        self.failures: list[Exception] = []
        """Why the last pushes failed; empty after one that succeeded."""
        self.on_published: Callable[[int], None] = lambda step: None
        """Part 0 calls it with the newest complete step after each push."""
        self._extras: dict[str, Path] = {}
        self._uploads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trm-upload")
        self._last: tuple[Future[None], Path] | None = None

    def put_extra(self, name: str, path: Path) -> None:
        """Upload the file `path` to `extra/<name>` before the next checkpoint is published."""
        self._extras[name] = path

    def fetch_extras(self, folder: Path) -> None:
        """Download the extra files that are missing in `folder`."""
        for info in self.store.list(_EXTRA):
            path = joined(folder, info.name.removeprefix(_EXTRA))
            if not path.exists():
                self.store.get_file(info.name, path)

    def push(self, folder: Path, *, step: int, score: float | None = None) -> Future[None]:
        """Upload the finished checkpoint `folder` in the background and return at once.

        The files are hard-linked aside first (or copied, where links are impossible), so the caller may delete or
        replace the folder. A push that has not started when the next one comes is dropped, so a slow bucket causes no
        backlog. A failed one is logged. Raises LeaseLost if another job has taken the run over.
        """
        if self.lease is not None:
            self.lease.check()
        staged = folder.parent / f".upload-{folder.name}-{uuid4().hex[:8]}"
        _link_folder(folder, staged)
        if self._last and self._last[0].cancel():
            shutil.rmtree(self._last[1], ignore_errors=True)
        upload = self._uploads.submit(self._upload, staged, folder.name, step, score)
        self._last = upload, staged
        return upload

    def close(self) -> None:
        """Wait for the last push and raise its error if it failed."""
        self._uploads.shutdown()
        if self._last:
            self._last[0].result()

    def list(self) -> list[Snapshot]:
        """Complete checkpoints, newest first: one listing, and one small read for each.

        Raises:
            StorageError: the bucket refuses or does not answer. Only a missing or damaged manifest means no checkpoint.
        """
        parts_of: dict[tuple[str, int], set[int]] = {}
        for info in self.store.list():
            if match := _MANIFEST.match(info.name):
                parts_of.setdefault((match["name"], int(match["parts"])), set()).add(int(match["part"]))
        snapshots = []
        for (name, parts), present in parts_of.items():
            if present != set(range(parts)):
                continue
            try:
                manifest = self._manifest(name, 0, parts)
                snapshots.append(Snapshot(name, int(manifest["step"]), manifest["score"], parts))
            except ObjectMissing:
                continue  # deleted since the listing: the job that owns the run keeps only the newest
            except (Damaged, ValueError, KeyError) as error:
                log.warning("checkpoint %s in %s is ignored: %s", name, self.store.uri, error)
        return sorted(snapshots, key=lambda snapshot: (snapshot.step, snapshot.name), reverse=True)

    def fetch(self, snapshot: Snapshot, folder: Path) -> Path:
        """Download a checkpoint to `folder/<name>`, which appears only when complete.

        Raises:
            ObjectMissing: a file is missing.
            Damaged: a file does not match its checksum.
            StorageError: a file's name leads out of the folder.
        """
        target = joined(folder, snapshot.name)
        temporary = folder / f".restore-{snapshot.name}-{uuid4().hex[:8]}"
        try:
            for part in range(snapshot.parts):
                manifest = self._manifest(snapshot.name, part, snapshot.parts)
                for entry in manifest["files"]:
                    self._fetch_file(f"{snapshot.name}/{manifest['token']}", entry, temporary)
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def _upload(self, staged: Path, name: str, step: int, score: float | None) -> None:
        try:
            self._publish(staged, name, step, score)
            self.failures = []
        except Exception as error:
            self.failures = [*self.failures, error]
            log.warning("upload of %s failed: %s", self.store.url(name), error)
            raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _publish(self, folder: Path, name: str, step: int, score: float | None) -> None:
        token = uuid4().hex[:12]
        entries = []
        for extra, path in list(self._extras.items()):
            self.store.put_file(_EXTRA + extra, path)
            self._extras.pop(extra)
        for relative in files_below(folder):
            path = folder / relative
            self.store.put_file(f"{name}/{token}/{relative}", path)
            entries.append({"name": relative, "bytes": path.stat().st_size, "sha256": sha256_file(path)})
        if self.lease is not None:
            self.lease.renew()
        manifest = {"format": _FORMAT, "step": step, "score": score, "token": token, "files": entries}
        try:
            self.store.put_bytes(
                _manifest_name(name, self.part, self.parts),
                json.dumps(manifest, sort_keys=True).encode(),
                generation=ABSENT,
            )
        except Conflict:
            # This step has been published (the run was resumed from before it) with the same state: delete ours.
            for entry in entries:
                self.store.delete(f"{name}/{token}/{entry['name']}")
        if self.part == 0:
            self._prune()

    def _prune(self) -> None:
        """Delete all but the newest `keep` checkpoints and the best, and what interrupted uploads have left."""
        snapshots = self.list()
        if not snapshots:
            return
        self.on_published(snapshots[0].step)
        kept = {snapshot.name for snapshot in snapshots[: self.keep]}
        scored = [snapshot for snapshot in snapshots if snapshot.score is not None]
        if scored:
            kept.add(max(scored, key=lambda snapshot: (snapshot.score, snapshot.step)).name)
        complete = {snapshot.name for snapshot in snapshots}
        doomed = []
        for info in self.store.list():
            name, separator, _ = info.name.partition("/")
            # Another host may still be uploading an incomplete checkpoint, unless it is older than a complete one.
            finished = name in complete or name < snapshots[0].name
            if separator and name != "extra" and name not in kept and finished:
                doomed.append(info.name)
        # The manifests first: a checkpoint that is half deleted must not look complete.
        for name in sorted(doomed, key=lambda name: _MANIFEST.match(name) is None):
            self.store.delete(name)

    def _fetch_file(self, origin: str, entry: dict[str, Any], folder: Path) -> None:
        path = joined(folder, entry["name"])
        self.store.get_file(f"{origin}/{entry['name']}", path)
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise Damaged(f"{entry['name']} has {size} bytes instead of {entry['bytes']}: it was cut short")
        if sha256_file(path) != entry["sha256"]:
            raise Damaged(f"{entry['name']} does not match its checksum: it is damaged")

    def _manifest(self, name: str, part: int, parts: int) -> dict[str, Any]:
        manifest = json.loads(self.store.get_bytes(_manifest_name(name, part, parts)))
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ValueError(f"its manifest is not of format {_FORMAT}")
        return manifest


def _manifest_name(name: str, part: int, parts: int) -> str:
    return f"{name}/part-{part:05d}-of-{parts:05d}.json"


def _link_folder(source: Path, target: Path) -> None:
    for name in files_below(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)
