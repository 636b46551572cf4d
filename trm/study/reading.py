"""Parse YAML and JSON, and explain what is wrong with it: where, what was given, what to do."""

import json
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from trm.errors import UserError
from trm.io import json_argument
from trm.study.merge import nearest

Value = TypeVar("Value")
Model = TypeVar("Model", bound=BaseModel)
Lines = dict[tuple[str, ...], int]
"""Keys, outermost first, and the line in which the last one stands."""
NO_FORMULA = "$ begins a formula in figures: write USD, or leave it out"
"""Why a text that figures show is refused."""
MOST_NODES = 1_000_000
"""Values of a YAML document with its aliases written out."""
MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`."""


def read_yaml(path: str | Path, remedy: str = "make it readable") -> Any:
    """Parse a YAML file. Raises UserError; `remedy` is for a file that cannot be opened."""
    return read_with_lines(path, remedy)[0]


def read_with_lines(path: str | Path, remedy: str) -> tuple[Any, Lines]:
    """Parse a YAML file; returns also the line of each key of its outer three levels."""
    try:
        content = Path(path).read_bytes()
        return _parse(content.decode("utf-8-sig"), str(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; {remedy}") from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text: save the file as UTF-8") from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; numbers are those of YAML 1.2. Raises UserError with line and column."""
    return _parse(text, where)[0]


def _parse(text: str, where: str) -> tuple[Any, Lines]:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        _size(node, {})
        lines = dict(_lines(node, ()))
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark, start = error.problem_mark, error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        context = f" ({error.context}, started in line {start.line + 1})" if start and error.context else ""
        raise UserError(f"{where}{place}: not valid YAML: {error.problem}{context}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    except (ValueError, RecursionError) as error:  # a number of more digits than Python reads
        raise UserError(f"{where}: not valid YAML: {error}") from error


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Values in a node with its aliases written out. yaml.YAMLError: more than `MOST_NODES`, or endless."""
    if id(node) not in known:
        known[id(node)] = MOST_NODES  # of a node within itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    if known[id(node)] >= MOST_NODES:
        raise yaml.constructor.ConstructorError(
            None, None, "its aliases write out too many values", node.start_mark
        )
    return known[id(node)]


def _lines(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """The keys below a mapping with their lines, three levels deep."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) and len(path) < 3 else ():
        inside = (*path, str(key.value))
        yield inside, key.start_mark.line + 1
        yield from _lines(value, inside)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the core schema of YAML 1.2, which refuses a key given twice, and numbers that YAML 1.1 reads
    otherwise."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}

    def flatten_mapping(self, node: yaml.Node) -> None:
        """Replace `<<: *other` by the keys of the other mapping that this one does not have."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            key = self._key(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        merges = len(seen) < len(node.value)
        super().flatten_mapping(node)
        if merges:  # one value for each key, as a mapping that another one merges is flattened again
            node.value = list({self._key(pair[0]): pair for pair in node.value}.values())

    def _key(self, node: yaml.Node) -> Any:
        key = self.construct_object(node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{key!r} cannot be a key; put text with braces or brackets in quotes",
                node.start_mark,
            )
        return key

    def ambiguous(self, node: yaml.Node) -> Any:
        raise yaml.constructor.ConstructorError(
            None,
            None,
            f"{node.value} is read in two ways: write a plain number, or text in quotes",
            node.start_mark,
        )


for _tag, _pattern in {
    MERGE: "<<",
    "tag:yaml.org,2002:null": "~|null|Null|NULL|",
    "tag:yaml.org,2002:bool": "true|True|TRUE|false|False|FALSE",
    "tag:yaml.org,2002:int": "[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+",
    "tag:yaml.org,2002:float": (
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|"
        r"\.(nan|NaN|NAN)"
    ),
    # 010, 0b11, 1_000 and 1:30 are 8, 3, 1000 and 90 in YAML 1.1
    "!ambiguous": "[-+]?(0[0-9_]+|0b[01_]+|[0-9]+_[0-9_]*|[0-9][0-9_]*(:[0-5]?[0-9])+)",
}.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), None)
_Loader.add_constructor("!ambiguous", _Loader.ambiguous)

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def first_error(error: ValidationError) -> Any:
    """The error that a message names: a misspelt key is why another one is missing."""
    errors = error.errors()
    return next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])


def error_sentence(error: ValidationError, model: Any) -> str:
    """The first validation error as one sentence with the nearest valid key. `model`: the model that was validated, to
    suggest a key for a misspelt one; None if there are several."""
    first = first_error(error)
    place, faults = _place(first), [*map(_place, error.errors())]
    more = f" (and {len(set(faults)) - 1} more)" if len(set(faults)) > 1 else ""
    if first["type"] == "literal_error":  # every alternative of a union has its own list
        lists = [
            item["ctx"]["expected"] for item in error.errors() if _place(item) == place and "ctx" in item
        ]
        first = {**first, "ctx": {"expected": ", ".join(reversed(lists))}}
    if first["type"] == "extra_forbidden":
        return f"unknown key {place!r}{nearest(str(first['loc'][-1]), _siblings(model, first['loc']))}{more}"
    expected = _expectation(first)
    return f"{place}: {expected}{more}" if place != "value" else f"{expected}{more}"


def _place(error: Any) -> str:
    """The dotted key of a validation error; parts with brackets name alternatives of a union."""
    return ".".join(str(part) for part in error["loc"] if "[" not in str(part)) or "value"


def _expectation(first: Any) -> str:
    """The expected and the given value."""
    kind, context = first["type"], first.get("ctx", {})
    if kind == "missing":
        return "is required: give it a value"
    if kind == "union_tag_invalid":
        known = [word.strip(" '") for word in context["expected_tags"].split(",")]
        hint = nearest(context["tag"], known)
        key = context["discriminator"].strip("'")
        return f"unknown {key} {context['tag']!r}{hint}; there are {', '.join(known)}"
    if kind == "union_tag_not_found":
        return f"needs the key {context['discriminator'].strip(chr(39))}"
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        bound = context[key]
        return f"must be {word} {f'{bound:,}' if isinstance(bound, int) else f'{bound:g}'}, not {first['input']!r}"
    if kind == "literal_error":
        return f"must be {context['expected']}, not {first['input']!r}"
    expected = _KINDS.get(kind.removesuffix("_parsing").removesuffix("_type").removesuffix("_from_float"))
    if expected:
        comma = re.fullmatch(r"[\d.]+( +[\d.]+)+", str(first["input"]))
        return f"must be {expected}, not {first['input']!r}" + "; is a comma missing?" * bool(comma)
    message = first["msg"].removeprefix("Value error, ")
    given = "" if kind == "value_error" else f", not {first['input']!r}"
    return f"{message[0].lower()}{message[1:]}{given}"


def _siblings(model: Any, location: tuple[Any, ...]) -> list[str]:
    """The valid keys beside an unknown one."""
    for part in location[:-1]:
        fields = getattr(model, "model_fields", None)
        annotation = fields[part].annotation if fields and part in fields else model
        arguments = [item for item in getattr(annotation, "__args__", ()) if hasattr(item, "model_fields")]
        model = arguments[-1] if arguments else annotation
    return list(getattr(model, "model_fields", {}))


def validated(model: type[Model], values: Any, where: str) -> Model:
    """Values as a typed configuration. Raises UserError with `where`, the key and the reason."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {error_sentence(error, model)}") from error


def parse(kind: type[Value] | TypeAdapter[Value], value: Any, name: str) -> Value:
    """Validate plain JSON data as a typed configuration. Raises UserError with `name`, the key and the reason."""
    try:
        return (kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)).validate_json(json.dumps(value))
    except ValidationError as error:
        raise UserError(f"{name}: {error_sentence(error, kind)}") from None


def config_argument(kind: type[Value] | TypeAdapter[Value], argument: str, option: str) -> Value:
    """`parse` of a `json_argument`."""
    return parse(kind, json_argument(argument, option), option)
