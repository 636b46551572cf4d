"""The interface of a store, and its errors.

Names are relative and separated by `/`. A generation is an opaque token that changes when a name gets another
content. A write or delete may be conditional on it (`ABSENT`: the name must not exist yet), so that of two writers only
one can win.
"""

import io
import logging
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote
from uuid import uuid4

from trm.errors import UserError
from trm.io import positive_number

log = logging.getLogger("trm")
Result = TypeVar("Result")
ABSENT = ""
"""The generation of a name that does not exist."""
ATTEMPTS = 3
"""Transfers to or from a bucket that are started before one that arrives damaged, or whose session is lost, counts as
failed."""
TRANSIENT_CODES = (408, 429, 500, 502, 503, 504)
"""HTTP answers after which a request is repeated."""
PATIENCE_MINUTES = 720.0
"""As long as jobs on a TPU pod go on without their controller (`tpu-lease` of profiles/tpu)."""
WARN_SECONDS = 60.0
"""Waiting for a bucket before a warning; further ones come each time that the waiting has doubled."""


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


class Scheme(NamedTuple):
    """A kind of bucket: one file of this package, and a line in SCHEMES."""

    module: str
    store: str
    package: str
    """What to install for it."""
    provider: str
    """Snakemake's storage plugin for it."""


SCHEMES = {
    "gs": Scheme("trm.storage.gcs", "GcsStore", "google-cloud-storage", "gcs"),
    "s3": Scheme("trm.storage.s3", "S3Store", "boto3", "s3"),
}


def scheme_of(place: str | os.PathLike[str]) -> str:
    """The scheme of a place, a key of SCHEMES; empty for a path of this disk, which may be written file:///path.

    Raises:
        StorageError: another scheme, or one without two slashes and a bucket, which would be a folder of that name.
    """
    text = os.fspath(place)
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/(/[^/])?", text)
    if found is None or text.startswith("file:///"):
        return ""
    if found[1] in SCHEMES and found[2]:
        return found[1]
    kinds = ", ".join(f"{scheme}://bucket/prefix" for scheme in SCHEMES)
    raise StorageError(f"{text} is no place for files: write {kinds} or a path (./{text} for that folder).")


def local_path(place: str | os.PathLike[str]) -> Path:
    """The path of a place on this disk."""
    text = os.fspath(place)
    return Path(unquote(text.removeprefix("file://")) if text.startswith("file:///") else text)


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing."""

    name: str
    size: int
    """Bytes."""
    generation: str
    updated: float
    """Time of the last write, seconds since 1970."""
    checksum: str | None = None
    """As of `Store.checksum`; None if the store has none."""


@dataclass(frozen=True)
class Patience:
    """How long an operation on a remote store is repeated, with pauses that double."""

    minutes: float = field(default_factory=lambda: positive_number("TRM_STORAGE_MINUTES", PATIENCE_MINUTES))
    """Total time of one operation before it fails."""
    first: float = 0.5
    """Longest wait before the first repetition, in seconds."""
    longest: float = 30.0
    """Longest wait between two attempts, in seconds."""
    request_seconds: float = 60.0
    """Timeout of one request."""


class Store(ABC):
    """A tree of named objects below one URI. Every write is atomic: readers see the old bytes or the new."""

    uri: str

    def put_bytes(self, name: str, data: bytes, *, generation: str | None = None) -> ObjectInfo:
        """Write `data`. Raises Conflict if the precondition fails."""
        return self._write(name, lambda: io.BytesIO(data), len(data), generation)

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

    def checksum(self, path: Path) -> str | None:
        """The checksum that the store gives to a file's content; None if it has none."""
        return None

    @abstractmethod
    def _write(
        self, name: str, content: Callable[[], BinaryIO], size: int, generation: str | None
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
    def delete(self, name: str, *, generation: str | None = None) -> None:
        """Delete the object if it exists. Raises Conflict if the precondition fails."""

    def url(self, name: str = "") -> str:
        """The full address of a name, for messages."""
        return f"{self.uri}/{name}" if name else self.uri

    def _conflict(self, name: str) -> Conflict:
        return Conflict(f"{self.url(name)} was changed by another writer: only one may write it at a time.")


def check_name(name: object) -> str:
    """The name itself. Raises StorageError unless it is relative and stays below the store."""
    if (
        not isinstance(name, str)
        or re.search(r"[\\\0\ud800-\udfff]", name)
        or {"", ".", ".."} & {*name.split("/")}
    ):
        raise StorageError(f"{name!r} is not an object name: use a relative path such as runs/a/weights.bin.")
    return name


def joined(folder: Path, name: object) -> Path:
    """The file of an object below a folder of this disk. Whoever writes to a bucket chooses names, so no other code
    joins one to a folder.

    Raises:
        StorageError: the name is absolute, has a part such as "..", a backslash or a zero byte, or a link leads out of
            the folder.
    """
    path = folder / check_name(name)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise StorageError(
            f"{path} is reached by a link that leads out of {folder}: give the link's target itself."
        )
    return path


class Retry(Protocol):
    """Makes a request one that is repeated, for as long as an operation's patience lasts or so many seconds."""

    def __call__(self, request: Callable[[], Any], seconds: float = ...) -> Callable[[], Any]: ...


class BucketStore(Store):
    """A store below scheme://bucket/prefix."""

    def __init__(self, uri: str, patience: Patience | None = None) -> None:
        scheme, _, rest = uri.partition("://")
        self.bucket, _, prefix = rest.partition("/")
        self.prefix = prefix.strip("/")
        self.uri = f"{scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        self.patience = patience or Patience()

    def _full(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _key(self, name: str) -> str:
        return self._full(check_name(name))

    def _relative(self, key: str) -> str:
        return key.removeprefix(f"{self.prefix}/") if self.prefix else key

    @abstractmethod
    def _is_transient(self, error: BaseException) -> bool:
        """Whether to repeat a request after this error."""

    @abstractmethod
    def _explain(self, error: BaseException, action: str, name: str) -> Exception:
        """The library's error as a sentence for users; unrelated errors are returned unchanged."""

    def _before_retry(self, error: BaseException) -> None:
        """Release what a failed request holds."""

    def _patiently(self, action: str, name: str, operation: Callable[[Retry], Result]) -> Result:
        """The result of `operation(retry)`, whose requests together are repeated for as long as our patience lasts.

        Raises:
            StorageError: as `_explain` says.
        """
        began, warn_at = time.monotonic(), WARN_SECONDS
        minutes = self.patience.minutes

        def say(error: Exception, waited: float) -> None:
            nonlocal warn_at
            if waited >= warn_at:
                warn_at, what = 2 * waited, f"{action} {self.url(name)} for {waited / 60:.0f} minutes"
                log.warning("Could not %s (%s): trying for up to %g.", what, str(error)[:200], minutes)

        def retry(request: Callable[[], Any], seconds: float = 60 * minutes) -> Callable[[], Any]:
            def repeat() -> Any:
                pause, end = self.patience.first, min(time.monotonic() + seconds, began + 60 * minutes)
                while True:
                    try:
                        return request()
                    except Exception as error:
                        now = time.monotonic()
                        if not self._is_transient(error) or now >= end:
                            raise
                        self._before_retry(error)
                        say(error, now - began)
                        time.sleep(min(random.uniform(pause / 2, pause), end - now))
                        pause = min(2 * pause, self.patience.longest)

            return repeat

        try:
            return operation(retry)
        except Exception as error:
            raise self._explain(error, action, name) from error

    def _in_attempts(self, transfer: Callable[[], Result], again: Callable[[Exception], bool]) -> Result:
        """The result of a transfer, which starts anew after an error of which `again` says so."""
        for _ in range(1, ATTEMPTS):
            try:
                return transfer()
            except Exception as error:
                if not again(error):
                    raise
                self._before_retry(error)
        return transfer()

    # errors that all buckets have in common

    def _missing(self, name: str) -> ObjectMissing:
        return ObjectMissing(f"{self.url(name)} does not exist: check the address.")

    def _damaged(self, name: str) -> Damaged:
        return Damaged(
            f"{self.url(name)} does not match its checksum after {ATTEMPTS} attempts: write it again."
        )

    def _unreachable(self, action: str, name: str, reason: str) -> Unreachable:
        return Unreachable(
            f"Could not {action} {self.url(name)} for {self.patience.minutes:g} minutes ({reason}): check the "
            "network and start again."
        )

    def _failed(self, action: str, name: str, reason: str) -> StorageError:
        return StorageError(
            f"Could not {action} {self.url(name)} ({reason}): check the address and the bucket."
        )


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether the place is in a bucket, not a path. Raises StorageError as `scheme_of` does."""
    return bool(scheme_of(place))
