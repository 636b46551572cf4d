"""A store in a Google Cloud Storage bucket: gs://bucket/prefix.

Built on google-cloud-storage; STORAGE_EMULATOR_HOST points it at an emulator. Requests are retried with
exponential backoff and jitter, uploads above 8 MB are resumable (a failed chunk is sent again, a lost session
is restarted), and each transfer's CRC-32C is verified.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

import requests
import urllib3
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.cloud import storage  # type: ignore[attr-defined, unused-ignore]
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from trm.storage.base import (
    AccessDenied,
    BucketMissing,
    Conflict,
    ObjectInfo,
    ObjectMissing,
    Patience,
    StorageError,
    Store,
    Unreachable,
    check_name,
)

# Otherwise the client requests the bucket's metadata in a thread to label traces, a permission that jobs may lack.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

Result = TypeVar("Result")
FIELDS = "items(name,size,generation,updated,crc32c),nextPageToken"
CHUNK = 32 << 20
RESTARTS = 3
PASSING_CODES = (408, 429, 500, 502, 503, 504)
# Answers for an expired resumable session: 410 is documented, 404 and 400 occur too.
LOST_SESSION_CODES = (400, 404, 410)


def passing(error: BaseException) -> bool:
    """Whether the error is transient (https://cloud.google.com/storage/docs/retry-strategy)."""
    if isinstance(error, auth.TransportError):
        return True
    if isinstance(error, auth.RefreshError):
        return bool(getattr(error, "retryable", False))
    if isinstance(error, api.GoogleAPICallError):
        return error.code in PASSING_CODES
    if isinstance(error, InvalidResponse):
        return error.response.status_code in PASSING_CODES
    return isinstance(
        error,
        (
            ConnectionError,
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
            urllib3.exceptions.HTTPError,  # raw downloads do not wrap these in requests' own
        ),
    )


def _close_clients(clients: list[storage.Client]) -> None:
    while clients:
        clients.pop().close()


class GcsStore(Store):
    """Objects below gs://bucket/prefix.

    Args:
        client: replaces the default one (application default credentials, one client per thread).
        on_retry: called with each error before a retry.
        chunk_bytes: size of one request of a resumable upload, a multiple of 256 KiB.
    """

    def __init__(
        self,
        uri: str,
        *,
        patience: Patience | None = None,
        client: storage.Client | None = None,
        on_retry: Callable[[BaseException], None] | None = None,
        chunk_bytes: int = CHUNK,
    ) -> None:
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        if not bucket:
            raise StorageError(f"{uri} names no bucket: write gs://bucket/prefix.")
        self.bucket_name, self.prefix = bucket, prefix.strip("/")
        self.uri = f"gs://{bucket}/{self.prefix}" if self.prefix else f"gs://{bucket}"
        self.patience = patience or Patience()
        self.on_retry = on_retry
        self.chunk_bytes = chunk_bytes
        self._given = client
        self._threads = threading.local()  # requests sessions are not meant to be shared between threads
        self._clients: list[storage.Client] = []
        self._finalizer = weakref.finalize(self, _close_clients, self._clients)

    def close(self) -> None:
        """Close the connections; also happens when the store is garbage-collected or the program exits."""
        self._finalizer()

    def put_bytes(self, name: str, data: bytes, *, if_generation_match: int | None = None) -> ObjectInfo:
        return self._upload(name, lambda: io.BytesIO(data), len(data), if_generation_match)

    def put_file(self, name: str, path: Path, *, if_generation_match: int | None = None) -> ObjectInfo:
        return self._upload(name, lambda: open(path, "rb"), path.stat().st_size, if_generation_match)

    def get_bytes(self, name: str) -> bytes:
        out = io.BytesIO()
        self._download(name, out)
        return out.getvalue()

    def get_file(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{uuid4().hex}"
        try:
            with open(temporary, "wb") as out:
                self._download(name, out)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, path)
        except OSError as error:
            if isinstance(error, requests.RequestException):
                raise
            reason = error.strerror or str(error)
            raise StorageError(
                f"Could not save {self.url(name)} as {path} ({reason}): free space or fix permissions."
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    def stat(self, name: str) -> ObjectInfo | None:
        blob = self._call("look up", name, lambda retry: self._bucket().get_blob(
            self._key(name), retry=retry, timeout=self._timeout
        ))  # fmt: skip
        return None if blob is None else self._info(blob)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        full = f"{self.prefix}/{prefix}" if self.prefix else prefix
        found = iter(
            self._client().list_blobs(
                self.bucket_name, prefix=full, fields=FIELDS, retry=self._retry(), timeout=self._timeout
            )
        )
        while True:
            blob = self._call("list", prefix, lambda retry: next(found, None))
            if blob is None:
                return
            yield self._info(blob)

    def delete(self, name: str, *, if_generation_match: int | None = None) -> None:
        blob = self._bucket().blob(self._key(name))
        try:
            self._call("delete", name, lambda retry: blob.delete(
                if_generation_match=if_generation_match, retry=retry, timeout=self._timeout
            ))  # fmt: skip
        except ObjectMissing:
            return  # also if an attempt whose response was lost had already deleted it

    def commit(self, source: str, name: str, *, if_generation_match: int | None = None) -> ObjectInfo:
        origin, target = self._bucket().blob(self._key(source)), self._bucket().blob(self._key(name))
        nonce = uuid4().hex
        target.metadata = {"writer": nonce}
        token: str | None = None
        while True:
            try:
                rewrite = partial(
                    target.rewrite,
                    origin,
                    token=token,
                    if_generation_match=if_generation_match,
                    timeout=self._timeout,
                )
                token, _, _ = self._call("rename", source, lambda retry: rewrite(retry=retry))  # noqa: B023
            except Conflict:
                if not self._ours(target, nonce):
                    raise
                token = None
            if token is None:
                break
        self.delete(source)
        return self._info(target)

    @property
    def _timeout(self) -> tuple[float, float]:
        return (min(10.0, self.patience.request_seconds), self.patience.request_seconds)

    def _client(self) -> storage.Client:
        if self._given is not None:
            return self._given
        if not hasattr(self._threads, "client"):
            try:
                self._threads.client = storage.Client()
            except (auth.GoogleAuthError, OSError) as error:
                raise self._explain(error, "open", "") from error
            self._clients.append(self._threads.client)
        return self._threads.client

    def _bucket(self) -> storage.Bucket:
        return self._client().bucket(self.bucket_name)

    def _key(self, name: str) -> str:
        check_name(name)
        return f"{self.prefix}/{name}" if self.prefix else name

    def _info(self, blob: storage.Blob) -> ObjectInfo:
        name = blob.name.removeprefix(f"{self.prefix}/") if self.prefix else blob.name
        updated = blob.updated.timestamp() if blob.updated else 0.0
        return ObjectInfo(name, int(blob.size or 0), int(blob.generation or 0), updated, blob.crc32c)

    def _retry(self, share: float = 1.0) -> Retry:
        wait = self.patience
        return Retry(
            predicate=passing,
            initial=wait.first,
            maximum=wait.longest,
            multiplier=2.0,
            timeout=wait.minutes * 60 * share,
            on_error=self._retried,
        )

    def _retried(self, error: BaseException) -> None:
        """Called with each error before a retry."""
        response = getattr(error, "response", None)
        if isinstance(response, requests.Response):
            response.close()  # otherwise the error keeps a download's connection open
        if self.on_retry:
            self.on_retry(error)

    def _upload(
        self, name: str, content: Callable[[], BinaryIO], size: int, generation: int | None
    ) -> ObjectInfo:
        nonce = uuid4().hex
        for attempt in range(RESTARTS):
            blob = self._bucket().blob(self._key(name), chunk_size=self.chunk_bytes)
            blob.metadata = {"writer": nonce}
            try:
                with content() as stream:
                    blob.upload_from_file(
                        stream,
                        size=size,
                        if_generation_match=generation,
                        checksum="crc32c",
                        timeout=self._timeout,
                        # a dead session is restarted before patience ends
                        retry=self._retry(1 / RESTARTS),
                    )
            except api.PreconditionFailed as error:
                # An attempt whose response was lost may have succeeded: then the object has our nonce.
                if self._ours(blob, nonce):
                    return self._info(blob)
                raise self._explain(error, "write", name) from error
            except Exception as error:
                lost = isinstance(error, api.GoogleAPICallError) and error.code in LOST_SESSION_CODES
                again = isinstance(error, (DataCorruption, api.RetryError)) or passing(error)
                again = again or (lost and not self._bucket_missing(error))
                if not again or attempt + 1 == RESTARTS:
                    raise self._explain(error, "write", name) from error
                self._retried(error)
                continue
            return self._info(blob)
        raise AssertionError("unreachable: the loop returns or raises")

    def _ours(self, blob: storage.Blob, nonce: str) -> bool:
        try:
            self._call("look up", blob.name, lambda retry: blob.reload(retry=retry, timeout=self._timeout))
        except ObjectMissing:
            return False
        return (blob.metadata or {}).get("writer") == nonce

    def _download(self, name: str, out: BinaryIO) -> None:
        for attempt in range(RESTARTS):
            out.seek(0)
            out.truncate()
            blob = self._bucket().blob(self._key(name))
            try:
                blob.download_to_file(
                    out, checksum="crc32c", timeout=self._timeout, retry=self._retry(), raw_download=True
                )
                return
            except DataCorruption as error:
                if attempt + 1 == RESTARTS:
                    raise self._explain(error, "read", name) from error
                self._retried(error)
            except Exception as error:
                raise self._explain(error, "read", name) from error

    def _call(self, action: str, name: str, function: Callable[[Retry], Result]) -> Result:
        try:
            return function(self._retry())
        except Exception as error:
            raise self._explain(error, action, name) from error

    def _bucket_missing(self, error: BaseException) -> bool:
        """Whether a 404 means that the bucket is missing; it looks like an object's 404."""
        if not isinstance(error, api.NotFound):
            return False
        try:
            next(iter(self._client().list_blobs(self.bucket_name, max_results=1, retry=self._retry())), None)
        except api.NotFound:
            return True
        except Exception:
            return False
        return False

    def _explain(self, error: BaseException, action: str, name: str) -> Exception:
        """The library's error as one with a sentence for users; unrelated errors are returned unchanged."""
        where = self.url(name)
        cause = error.cause if isinstance(error, api.RetryError) and error.cause else error
        reason = " ".join(str(getattr(cause, "message", "") or cause).split())[:200]
        if isinstance(cause, auth.DefaultCredentialsError):
            return AccessDenied(
                f"Could not {action} {where}: no Google credentials were found; run "
                "`gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
            )
        if isinstance(cause, (auth.RefreshError, api.Unauthorized)) and not passing(cause):
            return AccessDenied(
                f"Could not {action} {where}: the Google credentials have expired or were revoked; run "
                "`gcloud auth application-default login` (or renew the key) and start again."
            )
        if isinstance(cause, api.Forbidden):
            return AccessDenied(
                f"No permission to {action} {where}: give this account the role Storage Object Admin "
                f"on the bucket {self.bucket_name}."
            )
        if isinstance(cause, api.PreconditionFailed):
            return Conflict(f"{where} was changed by another writer: only one may write it at a time.")
        if isinstance(cause, api.NotFound):
            if self._bucket_missing(cause):
                return BucketMissing(
                    f"The bucket gs://{self.bucket_name} does not exist: create it with "
                    f"`gcloud storage buckets create gs://{self.bucket_name}` or correct its name."
                )
            return ObjectMissing(f"{where} does not exist: check the address.")
        if isinstance(cause, DataCorruption):
            return StorageError(
                f"{where} does not match its checksum after {RESTARTS} attempts: write it again."
            )
        if passing(cause):
            return Unreachable(
                f"Could not {action} {where} for {self.patience.minutes:g} minutes ({reason}): "
                "check the network and start again."
            )
        if isinstance(cause, (api.GoogleAPICallError, requests.RequestException, auth.GoogleAuthError)):
            return StorageError(f"Could not {action} {where} ({reason}): check the address and the bucket.")
        return error if isinstance(error, Exception) else StorageError(str(error))
