"""The interface every store has, its errors, and `open_store`.

Names are relative, separated by `/`. A generation is a number that changes with every write of a name;
passing `if_generation_match` makes a write conditional on it (0: the name must not exist yet), which is how
two writers are kept from both winning (https://cloud.google.com/storage/docs/request-preconditions).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trm.errors import UserError


class StorageError(UserError):
    """A failed operation; the message says which, where, and what to do."""


class ObjectMissing(StorageError):
    """The named object does not exist."""


class BucketMissing(StorageError):
    """The bucket itself does not exist."""


class Conflict(StorageError):
    """A conditional write lost: another writer changed the object first."""


class AccessDenied(StorageError):
    """Credentials are missing, expired, or not allowed to do this."""


class Unreachable(StorageError):
    """The store did not answer for as long as `Patience` allows."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing: size in bytes, generation, time of the last write (seconds since
    1970) and its CRC-32C (base64 of four big-endian bytes; None if the store has none)."""

    name: str
    size: int
    generation: int
    updated: float
    crc32c: str | None = None


@dataclass(frozen=True)
class Patience:
    """How long a remote store is retried: exponential backoff from `first` to `longest` seconds, given up
    after `minutes`. `request_seconds` is the time one request may stay silent."""

    minutes: float = field(default_factory=lambda: float(os.environ.get("TRM_STORAGE_MINUTES", "10")))
    first: float = 0.5
    longest: float = 30.0
    request_seconds: float = 60.0


class Store(ABC):
    """A tree of named byte strings below one URI. Every write is atomic: readers see the old bytes or the
    new."""

    uri: str

    @abstractmethod
    def put_bytes(self, name: str, data: bytes, *, if_generation_match: int | None = None) -> ObjectInfo:
        """Write `data`. Raises Conflict when the precondition fails."""

    @abstractmethod
    def put_file(self, name: str, path: Path, *, if_generation_match: int | None = None) -> ObjectInfo:
        """Write the file's content; large files are sent in resumable chunks. Raises Conflict."""

    @abstractmethod
    def get_bytes(self, name: str) -> bytes:
        """The object's content, its checksum compared. Raises ObjectMissing."""

    @abstractmethod
    def get_file(self, name: str, path: Path) -> None:
        """Copy the object to `path`, which appears only when complete and verified. Raises ObjectMissing."""

    @abstractmethod
    def stat(self, name: str) -> ObjectInfo | None:
        """The object's description, None where there is none."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose name starts with `prefix`, in name order, fetched page by page as they are
        consumed."""

    @abstractmethod
    def delete(self, name: str, *, if_generation_match: int | None = None) -> None:
        """Remove the object; a missing one is fine unless a generation was asked for. Raises Conflict."""

    @abstractmethod
    def commit(self, source: str, name: str, *, if_generation_match: int | None = None) -> ObjectInfo:
        """Give the object `source` the name `name`, as a rename does. Raises Conflict, ObjectMissing."""

    def exists(self, name: str) -> bool:
        """Whether the object exists."""
        return self.stat(name) is not None

    def url(self, name: str = "") -> str:
        """The full address of a name, for messages."""
        return f"{self.uri}/{name}" if name else self.uri


def check_name(name: str) -> str:
    """The name itself if it is relative and stays below the store; raises StorageError otherwise."""
    parts = PurePosixPath(name).parts
    if not name or name.startswith("/") or name.endswith("/") or ".." in parts or "\\" in name:
        raise StorageError(f"{name!r} is not an object name: use a relative path such as runs/a/weights.bin.")
    return name


def is_remote(uri: str | os.PathLike[str]) -> bool:
    """Whether the address is a bucket's (gs://...) and not a path."""
    return str(uri).startswith("gs://")
