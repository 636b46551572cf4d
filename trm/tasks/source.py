"""Build the puzzle pool of a DataConfig: `results/sources/<name>/`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from trm.data.pool import Pool, save_pool
from trm.errors import UserError
from trm.io import sha256_file
from trm.storage import is_remote, open_store
from trm.storage.cache import default_folder
from trm.study.dataset_identity import moves_puzzles, source_identity
from trm.study.schema import DataConfig
from trm.study.tasks import spec_of
from trm.tasks import task_of


def build_source(config: DataConfig, out: Path) -> Pool:
    """Generate, read or download the puzzles and write the pool to `out`.

    Raises:
        UserError: input is missing, malformed or has another checksum, or `out` is not writable.
    """
    files = local_copies(config) if config.source in ("csv", "json", "mix") else []
    if files and not config.sha256:
        config = config.model_copy(update={"sha256": tuple(sha256_file(path) for _, path in files)})
    identity = source_identity(config)
    for (name, path), wanted in zip(files, config.sha256):
        digest = sha256_file(path)
        if digest != wanted:
            raise UserError(
                f"{name} has the SHA-256 {digest}, not {wanted}: it is another file, or has changed"
            )
    config = config.model_copy(update={"pool": identity.get("pool", config.pool)})
    pool = task_of(config.task).pool(config, files)
    if moves_puzzles(config):
        kinds = [source.kind == "file" for source in config.sources]
        read = np.flatnonzero(np.array(kinds)[pool.sources] if kinds else np.ones(pool.puzzles, dtype=bool))
        task_of(config.task).move(config, pool, read)
    pool.report.setdefault("files", [name for name, _ in files])
    official = spec_of(config.task).official
    if config.source == "official" and official:
        pool.report |= {"repository": official.repository, "revision": official.revision}
    save_pool(pool, identity, out)
    return pool


def downloads(config: DataConfig) -> bool:
    """Whether the pool needs the network."""
    return config.source == "official" or any(map(is_remote, config.files))


def local_copies(config: DataConfig) -> list[tuple[str, Path]]:
    """Name and local path of each input file; files in a bucket are downloaded to the cache.

    Raises:
        UserError: a file is missing, or one in a bucket has no checksum.
    """
    paths = []
    for index, name in enumerate(config.files):
        path = Path(name)
        if is_remote(name):
            if index >= len(config.sha256):
                raise UserError(f"{name} is remote: give its checksum in data.sha256")
            path = _fetch(name, config.sha256[index])
        elif not path.is_file():
            raise UserError(f"{name} does not exist or is not a file: check the path in data.files")
        paths.append((name, path))
    return paths


def checksum(file: str) -> str:
    """SHA-256 of a file in a bucket, which is kept in the cache.

    Raises:
        UserError: the file is local, missing or cannot be read.
    """
    if not is_remote(file):
        raise UserError(
            f"{file} is a local file: give it without a checksum, which is computed when it is read"
        )
    folder, _, name = file.rpartition("/")
    files = default_folder() / "files"
    files.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=files) as scratch:
        path = Path(scratch, name)
        open_store(folder).get_file(name, path)
        digest = sha256_file(path)
        (files / digest).mkdir(exist_ok=True)
        path.replace(files / digest / name)
    return digest


def _fetch(uri: str, checksum: str) -> Path:
    folder, _, file = uri.rpartition("/")
    path = default_folder() / "files" / checksum / file
    if not path.is_file() or sha256_file(path) != checksum:
        open_store(folder).get_file(file, path)
    return path
