"""Open the store at a URI. The Google client is imported only for gs://."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trm.storage.base import Patience, StorageError, Store


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
