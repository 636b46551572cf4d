"""Input files of a configuration: variables in their names, and checksums."""

import re
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.io import sha256_file
from trm.storage.base import is_remote
from trm.study.merge import Flat
from trm.study.tasks import spec_of

ENDINGS = (".json", ".csv", ".csv.gz")
"""Of input files, in folders and patterns."""


def with_checksums(flat: Flat, where: str) -> Flat:
    """The configuration with the checksums of its files, computed for local files, given for remote ones
    (`gs://bucket/file.csv#sha256=HEX`), and for ARC with their names. Folders and patterns become their files.

    Raises:
        UserError: a local file cannot be read, or a remote one has no checksum.
    """
    files = flat.get("data.files") or ()
    if isinstance(files, str):
        files = (files,)
    if not files:
        return flat
    files = tuple(path for name in files for path in _expanded(str(name), where))
    flat = {**flat, "data.files": files}
    if not flat.get("data.sha256"):
        named = [_named_checksum(str(name), where) for name in files]
        flat["data.files"], flat["data.sha256"] = (tuple(part) for part in zip(*named))
    if flat.get("data.source") == "json":
        flat["data.names"] = spec_of(str(flat.get("data.task"))).file_names(flat["data.files"])
    return flat


def _expanded(name: str, where: str) -> list[str]:
    """The files of a folder or pattern, sorted; of a file, itself. UserError: there are none."""
    folder = Path(name).is_dir()
    if not folder and (Path(name).exists() or not set(name) & set("*?[")):
        return [name]
    paths = sorted(glob(f"{name}/**" if folder else name, recursive=True))
    found = [path for path in paths if path.endswith(ENDINGS) and Path(path).is_file()]
    if not found:
        raise UserError(f"{where}: data.files: {name} has no file that ends in {', '.join(ENDINGS)}")
    return found


def _named_checksum(name: str, where: str) -> tuple[str, str]:
    """A file's name without its checksum, and the checksum."""
    try:
        remote = is_remote(name)
    except UserError as error:
        raise UserError(f"{where}: data.files: {error}") from None
    if not remote:
        return name, _file_sha256(name, where)
    path, _, checksum = name.partition("#sha256=")
    if re.fullmatch("[0-9a-f]{64}", checksum):
        return path, checksum
    raise UserError(
        f"{where}: {name} is remote: append its checksum, as in {path}#sha256=..., which `python -m trm data "
        f"checksum {path}` prints, or give it in data.sha256"
    )


@cache
def _sha256_of(name: str, _mtime: int, _size: int) -> str:
    """Checksum of a file, cached until its time or size changes."""
    return sha256_file(name)


def _file_sha256(name: str, where: str) -> str:
    try:
        stat = Path(name).stat()
        return _sha256_of(name, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise UserError(f"{where}: data.files: {name}: {error.strerror}; name a readable file") from error


def fill_variables(flat: Flat, variables: dict[str, Any]) -> tuple[Flat, str]:
    """Replace `$name` in data.files; returns also the first variable that is not set, or an empty string."""
    files = flat.get("data.files") or []
    filled: list[str] = []
    for file in [files] if isinstance(files, str) else files:
        name = str(file)[1:] if str(file).startswith("$") else ""
        if name and not variables.get(name):
            return flat, name
        filled.extend(_paths(str(variables[name])) if name else [file])
    return (flat | {"data.files": filled}, "") if filled else (flat, "")


def _paths(text: str) -> list[str]:
    """Paths separated by commas, or one path if a file with the whole name exists."""
    return [text] if Path(text).exists() else text.split(",")
