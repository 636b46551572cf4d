"""A copy of a run's checkpoints in a store, uploaded in the background and fetched on another machine.

A checkpoint is a folder named after its step. Its files go below `<name>/<token>/`, unique to the push, and a
manifest with their checksums is written last, under the condition that none exists: a checkpoint is seen
whole or not at all. On several hosts each pushes its own part (`part` of `parts`); a checkpoint counts once
every part's manifest is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from trm.errors import UserError
from trm.io import sha256_file
from trm.storage.base import Conflict, ObjectMissing, Store
from trm.storage.folders import local_files
from trm.storage.lease import Lease
from trm.storage.uploader import Uploader

_MANIFEST = re.compile(r"^(?P<name>[^/]+)/part-(?P<part>\d{5})-of-(?P<parts>\d{5})\.json$")
_EXTRA = "extra/"
_FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """A complete checkpoint in the mirror: its name, step, validation score (None: not measured) and
    parts."""

    name: str
    step: int
    score: float | None
    parts: int


class Mirror:
    """Checkpoints of one run below `store`.

    `keep` newest checkpoints and the one with the highest score stay; part 0 removes the others. `lease`, if
    given, is renewed before each commit, so a job that lost the run cannot publish another checkpoint.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep: int = 5,
        part: int = 0,
        parts: int = 1,
        lease: Lease | None = None,
        uploader: Uploader | None = None,
    ) -> None:
        self.store, self.keep, self.part, self.parts, self.lease = store, keep, part, parts, lease
        self.uploader = uploader or Uploader()
        self._extras: dict[str, Path] = {}

    def put_extra(self, name: str, path: Path) -> None:
        """Have the file `path` (read then) copied to `extra/<name>` before the next checkpoint is
        published."""
        self._extras[name] = path

    def fetch_extras(self, folder: Path) -> None:
        """Bring the extra files that `folder` lacks."""
        for info in self.store.list(_EXTRA):
            path = folder / info.name.removeprefix(_EXTRA)
            if not path.exists():
                self.store.get_file(info.name, path)

    def push(self, folder: Path, *, step: int, score: float | None = None) -> None:
        """Upload the finished checkpoint `folder` in the background and return at once.

        The files are hard-linked aside first (copied where links are impossible), so the caller may delete or
        replace the folder. A push still waiting when the next one comes is dropped. Raises LeaseLost if the
        run was taken over.
        """
        if self.lease is not None:
            self.lease.check()
        staged = folder.parent / f".upload-{folder.name}-{uuid4().hex[:8]}"
        _link_folder(folder, staged)

        def drop() -> None:
            shutil.rmtree(staged, ignore_errors=True)

        def run() -> None:
            try:
                self._upload(staged, folder.name, step, score)
            finally:
                drop()

        self.uploader.submit(f"{self.store.uri} checkpoints", run, drop)

    def close(self) -> None:
        """Wait for the last push; raise its error if it failed."""
        self.uploader.close()

    def list(self) -> list[Snapshot]:
        """Complete checkpoints, newest first. One listing and one small read for each."""
        found: dict[tuple[str, int], set[int]] = {}
        for info in self.store.list():
            if match := _MANIFEST.match(info.name):
                found.setdefault((match["name"], int(match["parts"])), set()).add(int(match["part"]))
        snapshots = []
        for (name, parts), present in found.items():
            if present != set(range(parts)):
                continue
            try:
                manifest = self._manifest(name, 0, parts)
                snapshots.append(Snapshot(name, int(manifest["step"]), manifest["score"], parts))
            except ObjectMissing:
                continue  # deleted since it was listed: the job that owns the run keeps only the newest
            except (UserError, ValueError, KeyError) as error:
                warnings.warn(f"checkpoint {name} in {self.store.uri}: {error}", RuntimeWarning, stacklevel=2)
        return sorted(snapshots, key=lambda snapshot: (snapshot.step, snapshot.name), reverse=True)

    def fetch(self, snapshot: Snapshot, folder: Path, parts: set[int] | None = None) -> Path:
        """Bring a checkpoint's files (of the given parts; None: all) to `folder/<name>`, which appears only
        when all of them are there and match their checksums. Raises UserError for a missing or damaged
        file."""
        target = folder / snapshot.name
        temporary = folder / f".restore-{snapshot.name}-{uuid4().hex[:8]}"
        try:
            for part in sorted(range(snapshot.parts) if parts is None else parts):
                manifest = self._manifest(snapshot.name, part, snapshot.parts)
                for entry in manifest["files"]:
                    self._fetch_file(f"{snapshot.name}/{manifest['token']}", entry, temporary)
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def _upload(self, folder: Path, name: str, step: int, score: float | None) -> None:
        token = uuid4().hex[:12]
        entries = []
        for extra, path in list(self._extras.items()):
            self.store.put_file(_EXTRA + extra, path)
            self._extras.pop(extra)
        for relative in local_files(folder):
            path = folder / relative
            self.store.put_file(f"{name}/{token}/{relative}", path)
            entries.append({"name": relative, "bytes": path.stat().st_size, "sha256": sha256_file(path)})
        if self.lease is not None:
            self.lease.renew()
        manifest = {"format": _FORMAT, "step": step, "score": score, "token": token, "files": entries}
        try:
            self.store.put_bytes(
                self._manifest_name(name, self.part, self.parts),
                json.dumps(manifest, sort_keys=True).encode(),
                if_generation_match=0,
            )
        except Conflict:
            # This step is there already (the run was resumed from before it): the same state, so ours may go.
            for entry in entries:
                self.store.delete(f"{name}/{token}/{entry['name']}")
        if self.part == 0:
            self._prune()

    def _prune(self) -> None:
        """Delete checkpoints beyond `keep` and the best, and what interrupted uploads before the newest one
        left."""
        snapshots = self.list()
        if not snapshots:
            return
        kept = {snapshot.name for snapshot in snapshots[: self.keep]}
        scored = [snapshot for snapshot in snapshots if snapshot.score is not None]
        if scored:
            kept.add(max(scored, key=lambda snapshot: (snapshot.score, snapshot.step)).name)
        done = {snapshot.name for snapshot in snapshots}
        doomed: dict[str, list[str]] = {}
        for info in self.store.list():
            name = info.name.partition("/")[0]
            # An unfinished checkpoint may still be on its way from another host unless it is older than a
            # whole one.
            if (
                "/" in info.name
                and name != "extra"
                and name not in kept
                and (name in done or name < snapshots[0].name)
            ):
                doomed.setdefault(name, []).append(info.name)
        for names in doomed.values():
            # The manifests first: a half-deleted checkpoint must not look whole.
            for name in sorted(names, key=lambda name: (_MANIFEST.match(name) is None, name)):
                self.store.delete(name)

    def _fetch_file(self, origin: str, entry: dict[str, Any], folder: Path) -> None:
        path = folder / entry["name"]
        self.store.get_file(f"{origin}/{entry['name']}", path)
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise UserError(f"{entry['name']} has {size} bytes instead of {entry['bytes']}: it was cut short")
        if sha256_file(path) != entry["sha256"]:
            raise UserError(f"{entry['name']} does not match its checksum: it is damaged")

    def _manifest_name(self, name: str, part: int, parts: int) -> str:
        return f"{name}/part-{part:05d}-of-{parts:05d}.json"

    def _manifest(self, name: str, part: int, parts: int) -> dict[str, Any]:
        manifest = json.loads(self.store.get_bytes(self._manifest_name(name, part, parts)))
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ValueError(f"its manifest is not of format {_FORMAT}")
        return manifest


def _link_folder(source: Path, target: Path) -> None:
    for name in local_files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)
