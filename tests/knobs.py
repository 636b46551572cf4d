"""Another value for any field of a schema, so that no walk over its fields lists their values."""

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo


def another(field: FieldInfo, value: Any) -> Any:
    """The last other one of named values, the opposite, one more, half, or something for nothing."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return next(name for name in reversed(get_args(kind)) if name != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value, 2)
    if value is None:
        return 0.5 if float in get_args(kind) else 2
    return value + 1 if isinstance(value, int) else value / 2 or 0.5
