"""A store in a folder: atomic, synced writes, with modification times as generations."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from trm.io import exclusive, files_below, sync_folder
from trm.storage.base import ABSENT, ObjectInfo, ObjectMissing, StorageError, Store, joined

PRIVATE = ".store"
"""Folder of unfinished files and the lock, never listed."""


class LocalStore(Store):
    """Files below `root`; the first write creates the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)

    def stat(self, name: str) -> ObjectInfo | None:
        path = self._path(name)
        try:
            return None if path.is_dir() else _info(name, path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for name in files_below(self.root):
            if name.startswith(prefix) and not name.startswith(f"{PRIVATE}/"):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    yield _info(name, self.root / name)

    def delete(self, name: str, *, generation: str | None = None) -> None:
        if not self.root.is_dir():
            return
        with self._locked():
            self._check_generation(name, generation)
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                raise self._failed("delete", name, error) from error

    def _write(
        self, name: str, content: Callable[[], BinaryIO], size: int, generation: str | None
    ) -> ObjectInfo:
        target, temporary = self._path(name), self.root / PRIVATE / uuid4().hex
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            with content() as source, open(temporary, "xb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
            with self._locked():
                before = self._check_generation(name, generation)
                target.parent.mkdir(parents=True, exist_ok=True)
                # a new generation even if the clock stands still
                now = max(time.time_ns(), int(before or 0) + 1)
                os.utime(temporary, ns=(now, now))
                os.replace(temporary, target)
                sync_folder(target.parent)
                return _info(name, target)
        except OSError as error:
            raise self._failed("write", name, error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _read(self, name: str, out: BinaryIO) -> None:
        try:
            with open(self._path(name), "rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ObjectMissing(f"{self.url(name)} does not exist: check the path.") from error
        except OSError as error:
            raise self._failed("read", name, error) from error

    def _path(self, name: str) -> Path:
        return joined(self.root, name)

    def _check_generation(self, name: str, wanted: str | None) -> str:
        """The object's generation. Raises Conflict unless it is the wanted one."""
        info = self.stat(name)
        generation = info.generation if info else ABSENT
        if wanted is not None and generation != wanted:
            raise self._conflict(name)
        return generation

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        folder = self.root / PRIVATE
        folder.mkdir(parents=True, exist_ok=True)
        return exclusive(folder / "lock")

    def _failed(self, action: str, name: str, error: OSError) -> StorageError:
        reason = error.strerror or str(error)
        return StorageError(f"Could not {action} {self.url(name)} ({reason}): free space or fix permissions.")


def _info(name: str, path: Path) -> ObjectInfo:
    stat = path.stat()
    return ObjectInfo(name, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime)
