"""Figures at the fixed names that people open."""

from __future__ import annotations

from pathlib import Path

from trm.errors import UserError
from trm.io import read_json, write_bytes, write_json


def publish(figure: str, identity: str, out: str) -> None:
    """Copy a figure's PDF and PNG to a fixed name, with a stamp (JSON) that says what they were drawn from."""
    source, target = Path(figure), Path(out)
    target.with_suffix(".json").unlink(missing_ok=True)  # a stamp must never outlive its picture
    for suffix in (".pdf", ".png"):
        try:
            data = source.with_suffix(suffix).read_bytes()
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; build the figure again") from error
        write_bytes(target.with_suffix(suffix), data)
    caption = read_json(source.with_suffix(".json"))
    write_json(target.with_suffix(".json"), {"identity": identity, "figure": source.name, "caption": caption})
