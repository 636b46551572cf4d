"""A store in a folder: atomic, synced writes, and generations kept in the files' modification times."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from trm.io import exclusive, sync_folder
from trm.storage.base import Conflict, ObjectInfo, ObjectMissing, StorageError, Store, check_name

PRIVATE = ".store"
"""Folder of unfinished files and the lock, never listed."""


class LocalStore(Store):
    """Files below `root`; the folder is made by the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)

    def put_bytes(self, name: str, data: bytes, *, if_generation_match: int | None = None) -> ObjectInfo:
        return self._write(name, lambda out: out.write(data), if_generation_match)

    def put_file(self, name: str, path: Path, *, if_generation_match: int | None = None) -> ObjectInfo:
        def copy(out: BinaryIO) -> None:
            with open(path, "rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)

        return self._write(name, copy, if_generation_match)

    def get_bytes(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, IsADirectoryError) as error:
            raise self._missing(name) from error
        except OSError as error:
            raise self._failed("read", name, error) from error

    def get_file(self, name: str, path: Path) -> None:
        temporary = path.parent / f".{path.name}.{uuid4().hex}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._path(name), temporary)
            os.replace(temporary, path)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise self._missing(name) from error
        except OSError as error:
            raise self._failed("copy", name, error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def stat(self, name: str) -> ObjectInfo | None:
        path = self._path(name)
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if path.is_dir() else self._info(name, found)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        start = self.root / check_name(folder) if folder else self.root
        if start.is_dir():
            yield from (info for info in self._walk(start) if info.name.startswith(prefix))

    def delete(self, name: str, *, if_generation_match: int | None = None) -> None:
        if not self.root.is_dir():
            return
        with self._locked():
            self._require(name, if_generation_match)
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                raise self._failed("delete", name, error) from error
        self._prune_folders(self._path(name).parent)

    def commit(self, source: str, name: str, *, if_generation_match: int | None = None) -> ObjectInfo:
        path = self._path(source)
        if not path.is_file():
            raise self._missing(source)
        info = self._place(path, name, if_generation_match)
        self._prune_folders(path.parent)
        return info

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _info(self, name: str, found: os.stat_result) -> ObjectInfo:
        return ObjectInfo(name, found.st_size, found.st_mtime_ns, found.st_mtime)

    def _walk(self, folder: Path) -> Iterator[ObjectInfo]:
        # Folders sort as their contents do ("a/" after "a-"), so that the order is that of whole names.
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name + "/" if e.is_dir() else e.name)
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir():
                if folder != self.root or entry.name != PRIVATE:
                    yield from self._walk(Path(entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):
                yield self._info(Path(entry.path).relative_to(self.root).as_posix(), entry.stat())

    def _write(self, name: str, fill: Callable[[BinaryIO], object], generation: int | None) -> ObjectInfo:
        check_name(name)
        temporary = self.root / PRIVATE / uuid4().hex
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as out:
                fill(out)
                out.flush()
                os.fsync(out.fileno())
            return self._place(temporary, name, generation)
        except OSError as error:
            raise self._failed("write", name, error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, source: Path, name: str, generation: int | None) -> ObjectInfo:
        """Rename `source` to the name under the lock, with a modification time above the one it replaces."""
        target = self._path(name)
        with self._locked():
            self._require(name, generation)
            target.parent.mkdir(parents=True, exist_ok=True)
            before = self.stat(name)
            moment = max(time.time_ns(), before.generation + 1 if before else 0)
            os.utime(source, ns=(moment, moment))
            os.replace(source, target)
            sync_folder(target.parent)
            return self._info(name, target.stat())

    def _require(self, name: str, generation: int | None) -> None:
        if generation is None:
            return
        found = self.stat(name)
        if (found.generation if found else 0) != generation:
            raise Conflict(
                f"{self.url(name)} was changed by another writer: only one may write it at a time."
            )

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        folder = self.root / PRIVATE
        folder.mkdir(parents=True, exist_ok=True)
        return exclusive(folder / "lock")

    def _prune_folders(self, folder: Path) -> None:
        while folder != self.root and self.root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _missing(self, name: str) -> ObjectMissing:
        return ObjectMissing(f"{self.url(name)} does not exist: check the path.")

    def _failed(self, action: str, name: str, error: OSError) -> StorageError:
        reason = error.strerror or str(error)
        return StorageError(f"Could not {action} {self.url(name)} ({reason}): free space or fix permissions.")
