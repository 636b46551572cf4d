"""Reading and writing the analysis' files: JSON arguments, strict parsing, whole-file writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from trm.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. UserError: missing, unreadable or not JSON."""
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: build it first, or check the path") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): delete it and build it again") from None


def json_argument(text: str, name: str = "--spec") -> Any:
    """A command-line argument that is JSON text (starts with `{`) or the path of a JSON file."""
    if not text.lstrip().startswith("{"):
        return read_json(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} is not JSON: {error}") from None


def parse(model: type[Model] | TypeAdapter[Any], value: Any, name: str) -> Any:
    """Validate `value`; a UserError names the first wrong key and why."""
    adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole value"
        raise UserError(f"{name}: {place}: {first['msg']}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a whole file or nothing: a temporary neighbour, then a rename."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a whole file or nothing. UserError when the disk is full or the folder read-only."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass
        raise UserError(
            f"{path} cannot be written ({error.strerror}): free some space or choose another folder"
        ) from None


def dump(value: Any) -> str:
    """JSON as written into results: sorted keys, one space of indent, no NaN (null instead), newline at
    the end."""
    return json.dumps(clean(value), sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def clean(value: Any) -> Any:
    """Plain JSON types: numpy scalars become Python's, arrays lists, and what is not finite null."""
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    if hasattr(value, "tolist"):
        return clean(value.tolist())
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value
