"""Folders that are written atomically with checksums, and arrays that are read with clear errors."""

import contextlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trm.errors import UserError
from trm.io import files_below, read_json, sha256_file, write_json

MANIFEST = "manifest.json"
STALE = 86400.0
"""Age in seconds at which an unfinished folder counts as abandoned."""


@contextlib.contextmanager
def new_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder whose files replace those of `target` when the block ends without an error.

    The old manifest is removed first and the new one, with the checksums, is moved last, so a folder with a manifest is
    complete (a power cut can still truncate files; the checksums reveal that). Call `write_manifest` inside.

    Raises:
        UserError: the disk is read-only or full.
    """
    target = Path(target)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob(f".{target.name}.*"):  # left by a killed process
            if time.time() - old.stat().st_mtime > STALE:
                shutil.rmtree(old, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        yield temporary
        target.mkdir(exist_ok=True)
        (target / MANIFEST).unlink(missing_ok=True)
        for name in sorted(os.listdir(temporary), key=lambda name: name == MANIFEST):
            _replace(temporary / name, target / name)
    except OSError as error:
        raise UserError(
            f"{error.filename or target}: {error.strerror or error}; free space, or choose a writable folder"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _replace(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for name in os.listdir(source):
            _replace(source / name, target / name)
    else:
        source.replace(target)


def write_manifest(folder: Path, document: dict[str, Any]) -> None:
    """Write `manifest.json`: the document and the SHA-256 of every other file of the folder."""
    checksums = {name: sha256_file(folder / name) for name in files_below(folder) if name != MANIFEST}
    write_json(folder / MANIFEST, document | {"sha256": checksums})


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder of a kind (`source` or `dataset`).

    Raises:
        UserError: it is missing, of another kind, or of a newer format.
    """
    manifest = read_json(folder / MANIFEST)
    if (
        not isinstance(manifest, dict)
        or manifest.get("kind") != kind
        or not isinstance(manifest.get("sha256"), dict)
    ):
        raise UserError(
            f"{folder / MANIFEST} is not a {kind} manifest: check the path, or build the folder again"
        )
    if manifest.get("format") != 1:
        raise UserError(
            f"{folder / MANIFEST} has format {manifest.get('format')!r}, not 1: update this package"
        )
    return manifest


def verify(folder: Path, checksums: dict[str, str], names: list[str] | None = None) -> None:
    """Compare files with the manifest's checksums.

    Raises:
        UserError: a file is missing, changed, or not in the manifest.
    """
    for name in sorted(checksums) if names is None else names:
        path = folder / name
        if name not in checksums:
            raise UserError(f"{path} is not listed in {folder / MANIFEST}: build the folder again")
        try:
            digest = sha256_file(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; build the folder again") from None
        if digest != checksums[name]:
            raise UserError(
                f"{path} was changed or damaged since it was written: delete its folder and build it again"
            )


def load_array(path: Path, dtype: type, ndim: int) -> np.ndarray:
    """The array of a .npy file.

    Raises:
        UserError: it is missing, damaged, has another number of dimensions, or does not fit into `dtype`.
    """
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: build the data set again, or check the path") from None
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a readable NumPy array ({error}): build the data set again") from None
    if array.ndim != ndim:
        raise UserError(f"{path} has {array.ndim} dimensions, not {ndim}: it is not an array of a data set")
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "iu":
        raise UserError(f"{path} holds {array.dtype}, not integers: it is not an array of a data set")
    bounds = np.iinfo(dtype)
    if array.size and (array.min() < bounds.min or array.max() > bounds.max):
        raise UserError(
            f"{path} holds values outside {bounds.min}..{bounds.max}: it is not an array of a data set"
        )
    return array.astype(dtype)


def save_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """`numpy.savez` without timestamps: equal arrays give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as out:
                np.lib.format.write_array(out, np.ascontiguousarray(array), allow_pickle=False)


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a .npz file. Raises UserError if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}): delete its folder and build it again") from None
