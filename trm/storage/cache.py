"""Data sets of a bucket, downloaded once per host and shared by its jobs.

A cached copy is keyed by the checksums of its objects, so a changed data set gets a copy of its own. The copy's files
are verified at each use, so a damaged copy is downloaded again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.io import exclusive
from trm.storage import ObjectInfo, ObjectMissing, Store, is_remote, open_store

log = logging.getLogger("trm")


def default_folder() -> Path:
    """$TRM_CACHE, else $XDG_CACHE_HOME/trm, else ~/.cache/trm."""
    if chosen := os.environ.get("TRM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trm"


def fetch(uri: str, what: str = "data set") -> Path:
    """A local folder with the content of `uri`: the path itself, or a verified copy of gs://bucket/prefix.

    One job downloads, others that ask at the same time wait for it. `what`: for messages.

    Raises:
        UserError: nothing is there, the bucket cannot be read, or the disk is full.
    """
    if not is_remote(uri):
        path = Path(uri)
        if not path.exists():
            raise UserError(f"The {what} {path} does not exist: build it first or correct the path.")
        return path
    return fetch_store(open_store(uri), what=what)


def fetch_store(store: Store, folder: Path | None = None, what: str = "data set") -> Path:
    """The cached copy of a store's objects; see `fetch`."""
    objects = [info for info in store.list() if not info.name.endswith("/")]
    if not objects:
        raise ObjectMissing(f"There is no {what} below {store.uri}: build it first or correct the address.")
    key = hashlib.sha256(
        json.dumps([[info.name, info.size, info.crc32c] for info in objects]).encode()
    ).hexdigest()[:16]
    name = f"{store.uri.rstrip('/').rpartition('/')[2] or 'data'}-{key}"
    home = (folder or default_folder()) / "datasets"
    target = home / name
    try:
        home.mkdir(parents=True, exist_ok=True)
        with exclusive(home / f".{name}.lock"):
            fault = _fault(target, objects)
            if fault is None:
                return target
            if target.exists():
                log.warning("the cached data set %s is damaged (%s): downloading it again", target, fault)
            _download(store, objects, target)
    except OSError as error:
        raise UserError(
            f"Could not save the data set in {home} ({error.strerror or error}): free space or set TRM_CACHE."
        ) from error
    return target


def _download(store: Store, objects: list[ObjectInfo], target: Path) -> None:
    temporary = target.parent / f".{target.name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    for info in objects:
        store.get_file(info.name, temporary / info.name)
    fault = _fault(temporary, objects)
    if fault is not None:
        shutil.rmtree(temporary)
        raise UserError(f"The data set at {store.uri} changed during the download ({fault}): start again.")
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)


def _fault(folder: Path, objects: list[ObjectInfo]) -> str | None:
    """The first difference between a folder and the objects, or None."""
    for info in objects:
        path = folder / info.name
        if not path.is_file():
            return f"{info.name} is missing"
        if path.stat().st_size != info.size:
            return f"{info.name} has {path.stat().st_size} bytes, not {info.size}"
        if info.crc32c is not None and crc32c_file(path) != info.crc32c:
            return f"{info.name} does not match its checksum"
    return None


def crc32c_file(path: Path) -> str:
    """CRC-32C of a file as Cloud Storage writes it: base64 of four big-endian bytes."""
    import google_crc32c

    checksum: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    with open(path, "rb") as source:
        while piece := source.read(1 << 22):
            checksum.update(piece)
    return base64.b64encode(checksum.digest()).decode()
