"""Files on a local disk or in a bucket, behind one small interface.

`open_store(place)` returns a `Store`. Built on it are a cache of data sets, a mirror of checkpoints, and the lease that
allows one writer per run.
"""

from __future__ import annotations

import importlib
import os

from trm.storage.base import (
    ABSENT,
    SCHEMES,
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
    local_path,
    scheme_of,
)

__all__ = [
    "ABSENT",
    "SCHEMES",
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
    "local_path",
    "open_store",
    "scheme_of",
]


def open_store(place: str | os.PathLike[str], patience: Patience | None = None) -> Store:
    """The store at a place: a path, file:///path, or an address of SCHEMES. Sends no request and creates nothing.

    Raises:
        StorageError: another scheme, no bucket name, or a package that is not installed.
    """
    text, scheme = os.fspath(place), scheme_of(place)
    if not scheme:
        from trm.storage.local import LocalStore

        return LocalStore(local_path(text))
    kind = SCHEMES[scheme]
    try:
        store: type[Store] = getattr(importlib.import_module(kind.module), kind.store)
    except ImportError as error:
        raise StorageError(
            f"{text} needs the package {kind.package}: `pip install {kind.package}`."
        ) from error
    return store(text, patience)  # type: ignore[call-arg]
