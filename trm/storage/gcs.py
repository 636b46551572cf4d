"""A store in a Google Cloud Storage bucket: gs://bucket/prefix.

Built on google-cloud-storage; STORAGE_EMULATOR_HOST points it at an emulator. Every call of the library gets our retry,
since its own ends after 120 s. Uploads above 8 MB are resumable (a failed chunk is sent again, a lost session is
restarted), and every transfer is verified by its CRC-32C.
"""

import base64
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import google_crc32c
import requests
import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage  # type: ignore[attr-defined, unused-ignore]
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from trm.storage.base import (
    ABSENT,
    ATTEMPTS,
    TRANSIENT_CODES,
    AccessDenied,
    BucketMissing,
    BucketStore,
    ObjectInfo,
    ObjectMissing,
    Patience,
    Retry,
    StorageError,
)

# Otherwise a thread of the client requests the bucket's metadata to label traces; jobs may lack that permission.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

FIELDS = "items(name,size,generation,updated,crc32c),nextPageToken"
CHUNK = 32 << 20
"""Bytes of one request of a resumable upload, a multiple of 256 KiB."""
SESSION_SECONDS = 600.0
"""Without an answer, after which an upload starts anew: its session may be what is lost."""
LOST_SESSION_CODES = (400, 404, 410)
"""Answers for an expired resumable session: 410 is documented, 404 and 400 occur too."""


def is_transient(error: BaseException) -> bool:
    """Whether to repeat a request after the error (https://cloud.google.com/storage/docs/retry-strategy)."""
    if isinstance(error, (auth.TransportError, api.RetryError)):  # the library's own patience has ended
        return True
    if isinstance(error, auth.RefreshError):
        return bool(getattr(error, "retryable", False))
    if isinstance(error, api.GoogleAPICallError):
        return error.code in TRANSIENT_CODES
    if isinstance(error, InvalidResponse):
        return error.response.status_code in TRANSIENT_CODES
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


def _number(generation: str | None) -> int | None:
    """A generation as the library expects it; 0: the object must not exist."""
    return None if generation is None else int(generation or 0)


def _close_clients(clients: list[storage.Client]) -> None:
    while clients:
        clients.pop().close()


class GcsStore(BucketStore):
    """Objects below gs://bucket/prefix, with application default credentials."""

    def __init__(self, uri: str, patience: Patience | None = None) -> None:
        super().__init__(uri, patience)
        self._threads = threading.local()  # one client per thread: requests sessions are not thread-safe
        self._clients: list[storage.Client] = []
        weakref.finalize(self, _close_clients, self._clients)

    def stat(self, name: str) -> ObjectInfo | None:
        key = self._key(name)
        bucket = self._bucket()
        blob = self._patiently("look up", name, lambda retry: bucket.get_blob(key, **self._words(retry)))
        return None if blob is None else self._info(blob)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        def patiently(request: Callable[[], Any]) -> Callable[[], Any]:  # each page has our patience
            return lambda: self._patiently("list", prefix, lambda retry: retry(request)())

        words = {**self._words(patiently), "prefix": self._full(prefix), "fields": FIELDS}
        yield from map(self._info, self._client().list_blobs(self.bucket, **words))

    def delete(self, name: str, *, generation: str | None = None) -> None:
        blob = self._bucket().blob(self._key(name))
        condition = _number(generation)
        try:
            self._patiently(
                "delete", name, lambda retry: blob.delete(if_generation_match=condition, **self._words(retry))
            )
        except ObjectMissing:
            return  # perhaps deleted by an attempt whose response was lost

    def checksum(self, path: Path) -> str:
        """CRC-32C of a file as Cloud Storage writes it: base64 of four big-endian bytes."""
        checksum: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        with open(path, "rb") as source:
            while piece := source.read(1 << 22):
                checksum.update(piece)
        return base64.b64encode(checksum.digest()).decode()

    def _write(
        self, name: str, content: Callable[[], BinaryIO], size: int, generation: str | None
    ) -> ObjectInfo:
        nonce = uuid4().hex

        def upload(retry: Retry) -> ObjectInfo:
            blob = self._bucket().blob(self._key(name), chunk_size=CHUNK)
            blob.metadata = {"writer": nonce}
            condition = {"if_generation_match": _number(generation), "checksum": "crc32c"}
            words = self._words(lambda request: retry(request, seconds))
            try:
                with content() as stream:
                    blob.upload_from_file(stream, size=size, **condition, **words)
            except api.PreconditionFailed:
                # An attempt whose response was lost may have succeeded: then the object has our nonce.
                if not self._has_nonce(blob, nonce):
                    raise
            return self._info(blob)

        def again(error: Exception) -> bool:
            lost = isinstance(error, api.GoogleAPICallError) and error.code in LOST_SESSION_CODES
            return isinstance(error, DataCorruption) or (lost and not self._bucket_missing(error))

        seconds = min(SESSION_SECONDS, 60 * self.patience.minutes / ATTEMPTS)

        def attempts(retry: Retry) -> ObjectInfo:
            request: Callable[[], ObjectInfo] = retry(lambda: upload(retry))
            return self._in_attempts(request, again)

        return self._patiently("write", name, attempts)

    def _read(self, name: str, out: BinaryIO) -> None:
        def download(retry: Retry) -> None:
            out.seek(0)
            out.truncate()
            blob = self._bucket().blob(self._key(name))
            blob.download_to_file(out, checksum="crc32c", raw_download=True, **self._words(retry))

        def damaged(error: Exception) -> bool:
            return isinstance(error, DataCorruption)

        self._patiently("read", name, lambda retry: self._in_attempts(lambda: download(retry), damaged))

    def _words(self, retry: Callable[..., Any] | None) -> dict[str, Any]:
        """What every call of the library gets: our retry, and seconds to connect and of silence."""
        seconds = self.patience.request_seconds
        return {"retry": retry, "timeout": (min(10.0, seconds), seconds)}

    def _client(self) -> storage.Client:
        if not hasattr(self._threads, "client"):
            try:
                self._threads.client = storage.Client()
            except (auth.GoogleAuthError, OSError) as error:
                raise self._explain(error, "open", "") from error
            self._clients.append(self._threads.client)
        return self._threads.client

    def _bucket(self) -> storage.Bucket:
        return self._client().bucket(self.bucket)

    def _info(self, blob: storage.Blob) -> ObjectInfo:
        updated = blob.updated.timestamp() if blob.updated else 0.0
        generation = str(blob.generation or ABSENT)
        return ObjectInfo(self._relative(blob.name), int(blob.size or 0), generation, updated, blob.crc32c)

    def _is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    def _before_retry(self, error: BaseException) -> None:
        response = getattr(error, "response", None)
        if isinstance(response, requests.Response):
            response.close()  # otherwise the error keeps a download's connection open

    def _has_nonce(self, blob: storage.Blob, nonce: str) -> bool:
        try:
            self._patiently("look up", blob.name, lambda retry: blob.reload(**self._words(retry)))
        except ObjectMissing:
            return False
        return (blob.metadata or {}).get("writer") == nonce

    def _bucket_missing(self, error: BaseException) -> bool:
        """Whether a 404 means that the bucket is missing; it looks like an object's 404."""
        if not isinstance(error, api.NotFound):
            return False
        try:
            next(iter(self._client().list_blobs(self.bucket, max_results=1, **self._words(None))), None)
        except Exception as other:
            return isinstance(other, api.NotFound)
        return False

    def _explain(self, error: BaseException, action: str, name: str) -> Exception:
        where = self.url(name)
        if isinstance(error, StorageError):
            return error
        cause = error.cause if isinstance(error, api.RetryError) and error.cause else error
        reason = " ".join(str(getattr(cause, "message", "") or cause).split())[:200]
        if isinstance(cause, auth.DefaultCredentialsError):
            return AccessDenied(
                f"Could not {action} {where}: no Google credentials were found; run "
                "`gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
            )
        if isinstance(cause, (auth.RefreshError, api.Unauthorized)) and not is_transient(cause):
            return AccessDenied(
                f"Could not {action} {where}: the Google credentials have expired or were revoked; run "
                "`gcloud auth application-default login` (or renew the key) and start again."
            )
        if isinstance(cause, api.Forbidden):
            if any(
                word in reason.lower() for word in ("retention", "billing", "cryptokey", "kms", "requester")
            ):
                advice = "no role of this account would help"
            else:
                advice = f"give this account the role Storage Object User on the bucket {self.bucket}"
            return AccessDenied(f"No permission to {action} {where}: {advice} ({reason}).")
        if isinstance(cause, api.PreconditionFailed):
            return self._conflict(name)
        if isinstance(cause, api.NotFound):
            if self._bucket_missing(cause):
                return BucketMissing(
                    f"The bucket gs://{self.bucket} does not exist: create it with "
                    f"`gcloud storage buckets create gs://{self.bucket}` or correct its name."
                )
            return self._missing(name)
        if isinstance(cause, DataCorruption):
            return self._damaged(name)
        if is_transient(cause):
            return self._unreachable(action, name, reason)
        if isinstance(cause, (api.GoogleAPICallError, requests.RequestException, auth.GoogleAuthError)):
            return self._failed(action, name, reason)
        return error if isinstance(error, Exception) else StorageError(str(error))
