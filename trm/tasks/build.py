"""Build the puzzle pool of a DataConfig (`results/sources/<name>/`), and split a pool into a data set."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from trm.data.dataset import SPLITS, write_split
from trm.data.files import new_folder, write_manifest
from trm.data.pool import Pool, histogram, load_pool, save_pool
from trm.data.splits import split
from trm.errors import UserError
from trm.io import sha256_file, write_json
from trm.storage import is_remote, open_store
from trm.storage.cache import default_folder
from trm.study.dataset_identity import dataset_identity, moves_puzzles, source_identity
from trm.study.fingerprint import canonical_json, digest
from trm.study.schema import DataConfig
from trm.study.tasks import spec_of
from trm.tasks import task_of


def build_source(config: DataConfig, out: Path) -> Pool:
    """Generate, read or download the puzzles and write the pool to `out`.

    Raises:
        UserError: input is missing, malformed or has another checksum, or `out` is not writable.
    """
    files = local_copies(config) if config.source in ("csv", "json") else []
    if files and not config.sha256:
        config = config.model_copy(update={"sha256": tuple(sha256_file(path) for _, path in files)})
    names = spec_of(config.task).file_names([name for name, _ in files])
    if config.names not in ((), names):
        raise UserError(
            f"data.names is {config.names}, but data.files are named {names}: leave out data.names"
        )
    config = config.model_copy(update={"names": names})
    identity = source_identity(config)
    for (name, path), wanted in zip(files, config.sha256):
        found = sha256_file(path)
        if found != wanted:
            raise UserError(
                f"{name} has the SHA-256 {found}, not {wanted}: it is another file, or has changed"
            )
    wanted_by_splits = config.source == "generate" and not config.pool
    config = config.model_copy(update={"pool": identity.get("pool", config.pool)})
    pool = task_of(config.task).pool(config, files)
    if wanted_by_splits:
        pool = _filled(pool, config)
    if moves_puzzles(config):
        task_of(config.task).move(config, pool)
    pool.report.setdefault("files", [name for name, _ in files])
    official = spec_of(config.task).official
    if config.source == "official" and official:
        pool.report |= {"repository": official.repository, "revision": official.revision}
    save_pool(pool, identity, out)
    return pool


def _filled(pool: Pool, config: DataConfig) -> Pool:
    """A generated pool that fills the splits: a quarter larger at a time where keeping classes together leaves out too
    many puzzles, as long as that makes more."""
    while not _fills(pool, config):
        config = config.model_copy(update={"pool": config.pool + -(-config.pool // 4)})
        larger = task_of(config.task).pool(config, [])
        if larger.puzzles <= pool.puzzles:
            break
        pool = larger
    return pool


def _fills(pool: Pool, config: DataConfig) -> bool:
    try:
        split(pool, config, "")
    except UserError:
        return False
    return True


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
        found = sha256_file(path)
        (files / found).mkdir(exist_ok=True)
        path.replace(files / found / name)
    return found


def _fetch(uri: str, checksum: str) -> Path:
    folder, _, file = uri.rpartition("/")
    path = default_folder() / "files" / checksum / file
    if not path.is_file() or sha256_file(path) != checksum:
        open_store(folder).get_file(file, path)
    return path


def build_dataset(config: DataConfig, source: Path, out: Path) -> dict[str, Any]:
    """Split a pool into a data set and write it; returns its manifest.

    Raises:
        UserError: the pool is of another source, too small or damaged, or the folder is not writable.
    """
    pool, source_manifest = load_pool(source)
    if config.source in ("csv", "json") and not config.sha256:
        config = config.model_copy(update={"sha256": tuple(source_manifest["identity"].get("sha256", ()))})
    wanted = canonical_json(source_identity(config))
    if canonical_json(source_manifest["identity"]) != wanted:
        own, asked = source_manifest["identity"], source_identity(config)
        key = next(key for key in sorted({*own, *asked}) if own.get(key) != asked.get(key))
        raise UserError(
            f"{source} was built with {key} {own.get(key)}, but the configuration has {asked.get(key)}: build the "
            "source again, or name another one"
        )
    identity = dataset_identity(config)
    splits = split(pool, config, str(source))
    task = task_of(config.task)
    sets, identifiers, more = task.sets(config, pool, splits)
    counts = {
        name: {"puzzles": len(members), "classes": len(np.unique(pool.classes[members]))}
        | {"ratings": histogram(pool.ratings[members])}
        for name, members in zip(SPLITS, (splits.train, splits.validation, splits.test))
    }
    document = {
        "format": 1,
        "kind": "dataset",
        "name": out.name,
        "identity": digest(identity),
        "config": identity,
        "task": config.task,
        "augmentations": config.augmentations,
        "seed": config.seed,
        "box_rows": identity.get("box_rows", 0),
        "box_cols": identity.get("box_cols", 0),
        "counts": counts,
        "left_out_to_keep_classes_apart": splits.left_out,
        "source": {
            key: value for key, value in source_manifest.items() if key not in ("names", "format", "kind")
        },
    }
    document |= more | {"train_keys": task.train_keys(config, sets[0])}
    with new_folder(out) as folder:
        for name, puzzles in zip(SPLITS, sets):
            write_split(folder / name, puzzles)
        write_json(folder / "identifiers.json", identifiers, indent=None)
        write_manifest(folder, document)
    return document
