"""Data sets of a bucket, downloaded once per host and shared by its jobs.

A cached copy is keyed by the checksums or generations of its objects, so a changed data set gets a copy of its own. The
copy's files are verified at each use, so a damaged copy is downloaded again.
"""

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

from trm.errors import UserError
from trm.io import exclusive, read_json, sha256_file, user_cache, write_json
from trm.storage import ObjectInfo, ObjectMissing, Store, is_remote, local_path, open_store
from trm.storage.base import joined

log = logging.getLogger("trm")
SUMS = ".sha256.json"
"""SHA-256 of each file of a copy, computed when it was downloaded and verified."""


def default_folder() -> Path:
    """$TRM_CACHE, else $XDG_CACHE_HOME/trm, else ~/.cache/trm."""
    if chosen := os.environ.get("TRM_CACHE"):
        return Path(chosen)
    return user_cache() / "trm"


def fetch(uri: str, what: str = "data set") -> Path:
    """A local folder with the content of `uri`: the path itself, or a verified copy of a bucket's prefix.

    One job downloads, others that ask at the same time wait for it. `what`: for messages.

    Raises:
        UserError: nothing is there, the bucket cannot be read, or the disk is full.
    """
    if not is_remote(uri):
        path = local_path(uri)
        if not path.exists():
            raise UserError(f"The {what} {path} does not exist: build it first or correct the path.")
        return path
    return fetch_store(open_store(uri), what=what)


def fetch_store(store: Store, folder: Path | None = None, what: str = "data set") -> Path:
    """The cached copy of a store's objects; see `fetch`."""
    objects = _objects(store)
    if not objects:
        raise ObjectMissing(f"There is no {what} below {store.uri}: build it first or correct the address.")
    content = [[info.name, info.size, info.checksum or info.generation] for info in objects]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    name = f"{store.uri.rstrip('/').rpartition('/')[2] or 'data'}-{key}"
    home = (folder or default_folder()) / "datasets"
    target = home / name
    try:
        home.mkdir(parents=True, exist_ok=True)
        with exclusive(home / f".{name}.lock"):
            fault = _fault(target)
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
        store.get_file(info.name, joined(temporary, info.name))
    if _objects(store) != objects:
        shutil.rmtree(temporary)
        raise UserError(f"The data set at {store.uri} changed during the download: start again.")
    write_json(temporary / SUMS, {info.name: sha256_file(temporary / info.name) for info in objects})
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)


def _objects(store: Store) -> list[ObjectInfo]:
    return [info for info in store.list() if not info.name.endswith("/")]


def _fault(folder: Path) -> str | None:
    """The first file of a copy that is missing or damaged, or None."""
    try:
        sums = read_json(folder / SUMS)
        return next((name for name, found in sums.items() if sha256_file(folder / name) != found), None)
    except (OSError, UserError) as error:
        return str(error)
