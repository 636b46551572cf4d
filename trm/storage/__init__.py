"""Files on a local disk or in a Google Cloud Storage bucket, behind one small interface.

`open_store(uri)` returns a `Store`. Built on it are a cache of data sets, a mirror of checkpoints, and the lease that
allows one writer per run.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
    is_remote,
)

__all__ = [
    "AccessDenied",
    "BucketMissing",
    "Conflict",
    "ObjectInfo",
    "ObjectMissing",
    "Patience",
    "StorageError",
    "Store",
    "Unreachable",
    "is_remote",
    "open_store",
]


def open_store(uri: str | os.PathLike[str], patience: Patience | None = None) -> Store:
    """The store at `uri`: a path, file:///path, or gs://bucket/prefix. Sends no request and creates nothing.

    Raises:
        StorageError: another scheme, no bucket name, or google-cloud-storage is not installed.
    """
    text = os.fspath(uri)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme == "gs":
        try:
            from trm.storage.gcs import GcsStore
        except ImportError as error:
            raise StorageError(
                f"{text} needs the package google-cloud-storage: `pip install google-cloud-storage`."
            ) from error
        return GcsStore(text, patience)
    if scheme not in ("", "file"):
        raise StorageError(f"{text} has the unknown scheme {scheme}://: use a path or gs://bucket/prefix.")
    from trm.storage.local import LocalStore

    return LocalStore(Path(unquote(urlsplit(text).path)) if scheme else Path(text))
