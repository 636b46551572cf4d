"""The interface of a store, and its errors.

Names are relative and separated by `/`. A generation is a number that changes with every write of a name. With
`if_generation_match` a write or delete is conditional on it (0: the name must not exist yet), so that of two writers
only one can win (https://cloud.google.com/storage/docs/request-preconditions).
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from uuid import uuid4

from trm.errors import UserError


class StorageError(UserError):
    """A failed operation; the message says which, where, and what to do."""


class ObjectMissing(StorageError):
    """The named object does not exist."""


class Damaged(StorageError):
    """The object's content is not what was written."""


class BucketMissing(StorageError):
    """The bucket itself does not exist."""


class Conflict(StorageError):
    """A precondition failed: another writer changed the object first."""


class AccessDenied(StorageError):
    """Credentials are missing, expired, or lack a permission."""


class Unreachable(StorageError):
    """The store did not answer within the time that `Patience` allows."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing."""

    name: str
    size: int
    """Bytes."""
    generation: int
    updated: float
    """Time of the last write, seconds since 1970."""
    crc32c: str | None = None
    """Base64 of four big-endian bytes; None if the store has no checksums."""


@dataclass(frozen=True)
class Patience:
    """How long requests to a remote store are retried, with exponential backoff."""

    minutes: float = field(default_factory=lambda: float(os.environ.get("TRM_STORAGE_MINUTES", "10")))
    """Total time before giving up."""
    first: float = 0.5
    """Seconds before the first retry."""
    longest: float = 30.0
    """Longest wait between two attempts, in seconds."""
    request_seconds: float = 60.0
    """Timeout of one request."""


class Store(ABC):
    """A tree of named objects below one URI. Every write is atomic: readers see the old bytes or the new."""

    uri: str

    def put_bytes(self, name: str, data: bytes, *, if_generation_match: int | None = None) -> ObjectInfo:
        """Write `data`. Raises Conflict if the precondition fails."""
        return self._write(name, lambda: io.BytesIO(data), len(data), if_generation_match)

    def put_file(self, name: str, path: Path) -> ObjectInfo:
        """Write a file's content."""
        return self._write(name, lambda: open(path, "rb"), path.stat().st_size, None)

    def get_bytes(self, name: str) -> bytes:
        """The object's content, verified if the store has checksums. Raises ObjectMissing."""
        out = io.BytesIO()
        self._read(name, out)
        return out.getvalue()

    def get_file(self, name: str, path: Path) -> None:
        """Copy the object to `path`, which appears only when complete and verified. Raises ObjectMissing."""
        temporary = path.parent / f".{path.name}.{uuid4().hex}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as out:
                self._read(name, out)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(
                f"Could not save {self.url(name)} as {path} ({reason}): free space or fix permissions."
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    @abstractmethod
    def _write(
        self, name: str, content: Callable[[], BinaryIO], size: int, generation: int | None
    ) -> ObjectInfo:
        """Write what `content()` reads; it is opened again for every attempt."""

    @abstractmethod
    def _read(self, name: str, out: BinaryIO) -> None:
        """Write the object's content to `out`."""

    @abstractmethod
    def stat(self, name: str) -> ObjectInfo | None:
        """The object's description, or None if it does not exist."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose names start with `prefix`, in name order, fetched lazily."""

    @abstractmethod
    def delete(self, name: str, *, if_generation_match: int | None = None) -> None:
        """Delete the object if it exists. Raises Conflict if the precondition fails."""

    def url(self, name: str = "") -> str:
        """The full address of a name, for messages."""
        return f"{self.uri}/{name}" if name else self.uri


def check_name(name: str) -> str:
    """The name itself. Raises StorageError unless it is relative and stays below the store."""
    parts = PurePosixPath(name).parts
    if not name or name.startswith("/") or name.endswith("/") or ".." in parts or "\\" in name:
        raise StorageError(f"{name!r} is not an object name: use a relative path such as runs/a/weights.bin.")
    return name


def is_remote(uri: str | os.PathLike[str]) -> bool:
    """Whether the address is in a bucket (gs://...), not a path."""
    return str(uri).startswith("gs://")
