"""Files on a local disk or in a Google Cloud Storage bucket, behind one small interface.

`open_store(uri)` returns a `Store`. Built on it are a cache of data sets, a mirror of checkpoints, and the lease that
allows one writer per run.
"""

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
from trm.storage.opening import open_store

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
