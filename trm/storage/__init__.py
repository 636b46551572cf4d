"""Files on a local disk or in a bucket, behind one small interface.

`open_store(place)` returns a `Store`. Built on it are a cache of data sets, a mirror of checkpoints, and the lease that
allows one writer per run.
"""

import importlib
import os

from trm.storage.base import ABSENT as ABSENT
from trm.storage.base import SCHEMES as SCHEMES
from trm.storage.base import AccessDenied as AccessDenied
from trm.storage.base import BucketMissing as BucketMissing
from trm.storage.base import Conflict as Conflict
from trm.storage.base import ObjectInfo as ObjectInfo
from trm.storage.base import ObjectMissing as ObjectMissing
from trm.storage.base import Patience as Patience
from trm.storage.base import StorageError as StorageError
from trm.storage.base import Store as Store
from trm.storage.base import Unreachable as Unreachable
from trm.storage.base import is_remote as is_remote
from trm.storage.base import local_path as local_path
from trm.storage.base import scheme_of as scheme_of


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
