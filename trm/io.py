"""Files: atomic writes, locks, JSON, checksums."""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import stat
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trm.errors import UserError


def shipped(name: str) -> Path:
    """A file or folder of the repository: in the package where that was installed, else beside it in the checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "shipped"
    return inside / name if inside.is_dir() else package.parent / name


def positive_number(variable: str, default: float) -> float:
    """A positive number of the environment. Raises UserError for another value."""
    text = os.environ.get(variable, str(default))
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise UserError(f"{variable}={text}: give a number above 0")


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading. OSError: it is something else, such as a FIFO, which would wait for a writer."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115 (the caller's)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's content, hexadecimal. OSError: also for what is no regular file."""
    with open_regular(path) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def paragraph(text: str) -> str:
    """Wrap a paragraph or list item of Markdown at 120 characters."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write_bytes(path: str | Path, data: bytes, durable: bool = True) -> None:
    """Write a file atomically and durably, creating its folder: a reader sees the old content or the new.

    `durable=False`: faster, but a machine that loses power may lose the file.

    Raises:
        UserError: the disk is full or the folder is not writable.
    """
    path = Path(path)
    # hosts of a shared folder have equal process numbers, and a name that others can guess may be a link of theirs
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(f"{path} cannot be written: {_advice(error)}") from error


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any, indent: int | None = 1) -> None:
    """`write_bytes` of JSON. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on the file `path`, created if needed, until the block ends; waits for other processes."""
    with open(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def files_below(folder: Path) -> list[str]:
    """Relative names of all files below a folder, sorted."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def user_cache() -> Path:
    """$XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def build_folders(source: Path) -> list[Path]:
    """Where files built from `source` may be kept, in order of preference: beside it, or in a folder of the user. A job
    of a pod has sources of its own, which go when it ends: there it is the other way round."""
    folders = [source / "__pycache__", user_cache() / "trm"]
    if "TPU_TASK_FOLDER" in os.environ:
        folders.reverse()
    with contextlib.suppress(OSError):  # another user's: what is in it would run as this one
        folders.append(private_folder())
    return folders


def private_folder() -> Path:
    """`trm-UID` in the machine's temporary folder, made now if it was not before. Whatever is executed or locked in a
    temporary place belongs in it. OSError: it is a link, or another user owns it or can write to it."""
    folder = Path(tempfile.gettempdir()) / f"trm-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "is not this user's alone", str(folder))
    return folder


def first_writable(folders: list[Path]) -> Path | None:
    """The first folder that exists or can be created, and is writable."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def sync_folder(path: Path) -> None:
    """Sync the folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free space and start again (training resumes from its last checkpoint)"
    if error.errno == errno.EFBIG:
        return "this process may not write files of this size; raise the limit (ulimit -f)"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return "this user cannot write to the folder; choose another one"
    return error.strerror or str(error)


def read_json(path: str | Path) -> Any:
    """The content of a JSON file.

    Raises:
        UserError: missing, unreadable or not JSON.
    """
    try:
        with open_regular(path) as file:
            return json.loads(file.read().decode("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: build it first, or check the path") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; make it readable") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): delete it and build it again") from None


def json_argument(argument: str, option: str) -> Any:
    """The value of a command-line option: JSON text (starting with `{` or `[`), or the path of a JSON file.

    Raises:
        UserError: names the option.
    """
    text = argument
    if not argument.lstrip().startswith(("{", "[")):
        option = f"{option} {argument}"
        try:
            text = Path(argument).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise UserError(
                f"{option} cannot be read: {error.strerror}; give JSON text or the path of a JSON file"
            ) from None
        except UnicodeDecodeError:
            raise UserError(f"{option} is not UTF-8 text: save the file as UTF-8") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{option} is not JSON: {error}") from None


def tail(path: Path, size: int = 4000) -> str:
    """The last `size` bytes of a text file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def differences(first: Any, second: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ between two nested settings."""
    if isinstance(first, dict) and isinstance(second, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in sorted(first.keys() | second.keys()):
            found |= differences(first.get(key), second.get(key), f"{prefix}{key}.")
        return found
    return {} if first == second else {prefix.rstrip("."): (first, second)}


def dump(value: Any, compact: bool = False) -> str:
    """JSON text of a result: sorted keys, NumPy values as plain ones, null for NaN and infinity. Compact: one line."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 1}
    return json.dumps(_plain(value), sort_keys=True, allow_nan=False, ensure_ascii=False, **layout) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
