"""Files on a local disk or in a Google Cloud Storage bucket, behind one small interface.

`open_store(uri)` gives a `Store`; the rest of the package is built on it: a background uploader, a cache of
data sets, a mirror of checkpoints and the lease that keeps two writers of one run apart.
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
