"""Writing so that nothing half-written is ever taken for done."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from trm.errors import UserError


def write_json(path: str | Path, document: Any) -> None:
    """Write to a temporary name, then rename.

    Raises:
        UserError: if the place cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: {error.strerror}; free space or make the folder writable") from error


def publish(figure: str, identity: str, out: str) -> None:
    """Copy a figure's PDF and PNG to a fixed name, with a stamp that says what they were drawn from."""
    source, target = Path(figure), Path(out)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_suffix(".json").unlink(missing_ok=True)  # no stamp must outlive the picture it speaks of
        for suffix in (".pdf", ".png"):
            temporary = target.with_name(f".{target.stem}{suffix}.{os.getpid()}")
            shutil.copyfile(source.with_suffix(suffix), temporary)
            temporary.replace(target.with_suffix(suffix))
        caption = json.loads(source.with_suffix(".json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{error.filename or target}: {error.strerror}; free space or make it readable"
        ) from error
    write_json(target.with_suffix(".json"), {"identity": identity, "figure": source.name, "caption": caption})
