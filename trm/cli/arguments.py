"""JSON arguments: a text that starts with `{`, or a path to a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from trm.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def load_config(kind: type[Model], argument: str, option: str) -> Model:
    """The typed configuration that a command-line argument holds.

    Raises:
        UserError: names the option, the field and what is wrong with it.
    """
    text, place = argument, option
    if not argument.lstrip().startswith("{"):
        place = f"{option} {argument}"
        try:
            text = Path(argument).read_text()
        except OSError as error:
            raise UserError(f"{place} cannot be read: {error.strerror}") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{place} is no JSON: {error}") from None
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{place}: {where + ': ' if where else ''}{first['msg']}") from None
