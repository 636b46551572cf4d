"""A store in an S3 bucket, of Amazon or of any compatible server: s3://bucket/prefix.

Built on boto3, which reads credentials, region and AWS_ENDPOINT_URL_S3 (another server) from the environment and
verifies checksums. Its own retries are off: they end after about 100 failures, whatever the time. Conditional writes
need a server that has them (AWS since 2024,
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html); preflight tests it.
"""

import hashlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import boto3
import urllib3
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as aws
from botocore.config import Config

from trm.storage.base import (
    ABSENT,
    TRANSIENT_CODES,
    AccessDenied,
    BucketMissing,
    BucketStore,
    Conflict,
    ObjectInfo,
    ObjectMissing,
    Patience,
    StorageError,
)

CHUNK = 32 << 20
"""Bytes of one part of an upload in several parts."""
MISSING, CONFLICT = ("404", "NoSuchKey"), ("409", "412", "PreconditionFailed")
BROKEN = (aws.HTTPClientError, aws.IncompleteReadError, urllib3.exceptions.HTTPError)
"""The connection is refused, silent or lost."""
BUSY = ("RequestTimeout", "ConditionalRequestConflict")
"""Errors after which a request is repeated, besides those of TRANSIENT_CODES: the server lost patience with our upload,
or "another request on this object is in progress", after which https://docs.aws.amazon.com says try again."""


class S3Store(BucketStore):
    """Objects below s3://bucket/prefix."""

    def __init__(self, uri: str, patience: Patience | None = None) -> None:
        super().__init__(uri, patience)
        seconds = self.patience.request_seconds
        self._config = Config(
            connect_timeout=min(10.0, seconds),
            read_timeout=seconds,
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        self._opened: Any = None
        self._lock = threading.Lock()

    def stat(self, name: str) -> ObjectInfo | None:
        try:
            found = self._call("look up", name, "head_object", Key=self._key(name))
        except ObjectMissing:
            return None
        return ObjectInfo(
            name, found["ContentLength"], found["ETag"], found["LastModified"].timestamp(), found["ETag"]
        )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        more: dict[str, str] = {}
        while True:
            page = self._call("list", prefix, "list_objects_v2", Prefix=self._full(prefix), **more)
            for found in page.get("Contents", ()):
                etag, updated = found["ETag"], found["LastModified"].timestamp()
                yield ObjectInfo(self._relative(found["Key"]), found["Size"], etag, updated, etag)
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, name: str, *, generation: str | None = None) -> None:
        condition = {} if generation is None else {"IfMatch": generation}
        try:
            self._call("delete", name, "delete_object", Key=self._key(name), **condition)
        except ObjectMissing:
            return  # perhaps deleted by an attempt whose response was lost

    def checksum(self, path: Path) -> str:
        """The ETag of an object that has the file's content and was written by `put_file`, unless the bucket encrypts
        objects with keys of KMS."""
        with open(path, "rb") as source:
            pieces = iter(lambda: source.read(CHUNK), b"")
            parts = [hashlib.md5(piece, usedforsecurity=False).digest() for piece in pieces]
        if path.stat().st_size < CHUNK:
            return f'"{(parts or [hashlib.md5(usedforsecurity=False).digest()])[0].hex()}"'
        return f'"{hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"'

    def _write(
        self, name: str, content: Callable[[], BinaryIO], size: int, generation: str | None
    ) -> ObjectInfo:
        key, nonce = self._key(name), {"writer": uuid4().hex}
        if generation is None:  # perhaps large, so in parts
            # its threads would not start at the end of a program, where the last upload is awaited
            transfer = TransferConfig(multipart_threshold=CHUNK, multipart_chunksize=CHUNK, use_threads=False)

            def upload() -> None:
                with content() as stream:
                    self._client().upload_fileobj(stream, self.bucket, key, Config=transfer)

            self._patiently("write", name, lambda retry: retry(upload)())
            info = self.stat(name)
            if info is None:
                raise Conflict(f"{self.url(name)} was deleted while it was written: only one may write it.")
            return info
        condition = {"IfNoneMatch": "*"} if generation == ABSENT else {"IfMatch": generation}
        try:
            with content() as stream:
                done = self._call(
                    "write", name, "put_object", Key=key, Body=stream.read(), Metadata=nonce, **condition
                )
        except (Conflict, ObjectMissing) as error:
            # An attempt whose response was lost may have succeeded: then the object has our nonce.
            found = self._call("look up", name, "head_object", Key=key) if self.stat(name) else {}
            if found.get("Metadata") != nonce:
                raise Conflict(str(error)) from error
            return ObjectInfo(name, size, found["ETag"], found["LastModified"].timestamp(), found["ETag"])
        headers = done["ResponseMetadata"]["HTTPHeaders"]
        updated = parsedate_to_datetime(headers["date"]).timestamp()
        return ObjectInfo(name, size, done["ETag"], updated, done["ETag"])

    def _read(self, name: str, out: BinaryIO) -> None:
        def download() -> None:
            out.seek(0)
            out.truncate()
            found = self._client().get_object(Bucket=self.bucket, Key=self._key(name))
            digest = hashlib.md5(usedforsecurity=False)
            # a body's own `with` gives the stream below it, which verifies neither length nor checksum
            with closing(found["Body"]) as body:
                while piece := body.read(1 << 20):
                    out.write(piece)
                    digest.update(piece)
            # not every server sends a checksum
            if _tells_md5(found) and found["ETag"].strip('"') != digest.hexdigest():
                raise aws.FlexibleChecksumError(error_msg=f"{self.url(name)} arrived damaged")

        def damaged(error: Exception) -> bool:
            return isinstance(error, aws.FlexibleChecksumError)

        self._patiently("read", name, lambda retry: retry(lambda: self._in_attempts(download, damaged))())

    def _client(self) -> Any:
        with self._lock:  # a client may be shared by threads, but not created by several at once
            if self._opened is None:
                self._opened = boto3.session.Session().client("s3", config=self._config)
                weakref.finalize(self, self._opened.close)
        return self._opened

    def _call(self, action: str, name: str, method: str, **more: Any) -> Any:
        request = partial(getattr(self._client(), method), Bucket=self.bucket, **more)
        return self._patiently(action, name, lambda retry: retry(request)())

    def _is_transient(self, error: BaseException) -> bool:
        if isinstance(error, aws.FlexibleChecksumError):
            return False
        return isinstance(error, BROKEN) or _status(error) in TRANSIENT_CODES or _code(error) in BUSY

    def _bucket_missing(self) -> bool:
        """Whether a 404 means that the bucket is missing; without a body it looks like an object's."""
        try:
            self._client().head_bucket(Bucket=self.bucket)
        except aws.ClientError as error:
            return _code(error) in ("404", "NoSuchBucket")
        except aws.BotoCoreError:
            pass
        return False

    def _explain(self, error: BaseException, action: str, name: str) -> Exception:
        where, code = self.url(name), _code(error)
        reason = " ".join(str(error).split())[:200]
        if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError | aws.NoRegionError):
            return AccessDenied(
                f"Could not {action} {where}: no complete AWS credentials were found ({reason}); run `aws configure` "
                "or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION."
            )
        if "Token" in code or code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
            return AccessDenied(
                f"Could not {action} {where}: the AWS credentials are wrong or have expired ({code}); renew them."
            )
        if code in ("403", "AccessDenied", "Forbidden", "AllAccessDisabled"):
            return AccessDenied(
                f"No permission to {action} {where}: allow this account s3:ListBucket, s3:GetObject, s3:PutObject "
                f"and s3:DeleteObject on the bucket {self.bucket}."
            )
        if code in CONFLICT:
            return self._conflict(name)
        if code == "NoSuchBucket" or (code in MISSING and self._bucket_missing()):
            return BucketMissing(
                f"The bucket s3://{self.bucket} does not exist: create it with `aws s3 mb s3://{self.bucket}` or "
                "correct its name."
            )
        if code in MISSING:
            return self._missing(name)
        if isinstance(error, aws.FlexibleChecksumError):
            return self._damaged(name)
        if self._is_transient(error):
            return self._unreachable(action, name, reason)
        if isinstance(error, aws.BotoCoreError | aws.ClientError | boto3.exceptions.Boto3Error):
            return self._failed(action, name, reason)
        return error if isinstance(error, Exception) else StorageError(str(error))


def _code(error: BaseException) -> str:
    """The server's code of an error, such as NoSuchKey; a failed upload in parts names it in its cause."""
    inner = error if isinstance(error, aws.ClientError) else error.__context__
    return str(inner.response["Error"].get("Code", "")) if isinstance(inner, aws.ClientError) else ""


def _tells_md5(found: dict[str, Any]) -> bool:
    """Whether an object's ETag is the MD5 of its content: one part, not encrypted by a key of the customer."""
    encrypted = {"SSEKMSKeyId", "SSECustomerKeyMD5"} & set(found)
    return not encrypted and re.fullmatch('"[0-9a-f]{32}"', found["ETag"]) is not None


def _status(error: BaseException) -> int:
    inner = error if isinstance(error, aws.ClientError) else error.__context__
    metadata = inner.response.get("ResponseMetadata", {}) if isinstance(inner, aws.ClientError) else {}
    return int(metadata.get("HTTPStatusCode", 0))
