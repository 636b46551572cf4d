"""Merge configurations: dotted keys, derived keys, and errors that name the nearest valid key."""

import difflib
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.flops import train_flops
from trm.study.schema import (
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    PlacementConfig,
    RuntimeConfig,
    TrainingConfig,
)

SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "placement": PlacementConfig,
    "evaluation": EvaluationConfig,
}
LENGTHS = ("steps", "rows", "epochs", "flops")
"""Four ways to give the length of training; giving one replaces the others."""
DERIVED = ("training.rows", "training.epochs", "training.flops", "training.lr_rule")
"""Keys that resolve into others, so that equal points are one run however they are written."""
Flat = dict[str, Any]
"""Dotted key -> value: the form of every configuration from the file that gives it to the typed one."""


OTHER_NAMES = {"eval_steps": "unroll", "test_steps": "unroll", "learning_rate": "lr", "width": "d_model"}
"""What keys are called elsewhere, in tables and texts."""
HOLDERS = {"seeds": "an experiment or a scale", "threads": "a scale", "hardware": "a scale"}
"""Where keys belong that are looked for among those of a run."""


@cache
def valid_keys() -> frozenset[str]:
    """Every dotted key that a grid or overlay may contain."""
    fields = {f"{section}.{field}" for section, model in SECTIONS.items() for field in model.model_fields}
    return frozenset(fields | set(DERIVED))


def flatten(overlay: dict[str, Any], where: str) -> Flat:
    """Flatten nested sections and dotted keys to `{"model.d_model": 64}`. UserError: unknown key; the message has
    `where`, the key and the nearest valid one; or one key in both forms."""
    flat: Flat = {}
    for key, value in overlay.items():
        nested = key in SECTIONS and isinstance(value, dict)
        for name, item in (
            {f"{key}.{field}": value[field] for field in value}.items() if nested else ((str(key), value),)
        ):
            check_key(name, where)
            if name in flat:
                section, field = name.split(".", 1)
                raise UserError(
                    f"{where}: {name} is given twice, as `{name}:` and as `{section}: {{{field}: ...}}`: keep one"
                )
            flat[name] = item
    return flat


def check_key(key: str, where: str) -> None:
    """Raise UserError for an unknown key."""
    section, _, field = key.partition(".")
    if section == "runtime" and field in RuntimeConfig.model_fields:
        raise UserError(
            f"{where}: {key} does not belong to a run: write it under `runtime` of an experiment or a scale, or use "
            f"--set {key}=VALUE"
        )
    if key in HOLDERS:
        raise UserError(f"{where}: {key!r} does not belong to a run: write it in {HOLDERS[key]}")
    if key not in valid_keys():
        runtime = {f"runtime.{name}" for name in RuntimeConfig.model_fields}
        raise UserError(f"{where}: unknown key {key!r}{nearest(key, valid_keys() | runtime)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing if no known word is close."""
    known, (section, _, key) = list(known), word.rpartition(".")
    key = key if section in (*SECTIONS, "") else word
    # a key without its section, or in another one: of training rather than of evaluation
    same = [
        sorted((name for name in known if f".{name}".endswith(f".{each}")), reverse=True)
        for each in (key, OTHER_NAMES.get(key, key))
    ]
    close = same[0] or same[1] or difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    return f"; did you mean {close[0]!r}?" if close else ""


def merge_layers(*layers: Flat) -> Flat:
    """Merge layers: later ones win; one length of training, or a learning rate, replaces the rules of lower layers."""
    result: Flat = {}
    for layer in layers:
        if "training.lr" in layer:
            result.pop("training.lr_rule", None)
        if any(f"training.{name}" in layer for name in LENGTHS):
            for name in LENGTHS:
                result.pop(f"training.{name}", None)
        result.update(layer)
    return result


def resolve(flat: Flat, where: str) -> Flat:
    """Replace the derived keys by the fields that they set.

    rows: steps = rows // batch_size. epochs: steps = epochs * train_puzzles // batch_size (as the reference trainer
    counts rows). flops: the most steps within this training compute. lr_rule: see below.
    """
    flat = dict(flat)
    given = [name for name in LENGTHS if f"training.{name}" in flat]
    if len(given) > 1:
        raise UserError(f"{where}: training.{given[0]} and training.{given[1]} both set the length; keep one")
    batch = flat.get("training.batch_size", TrainingConfig().batch_size)
    rows = flat.pop("training.rows", None)
    epochs = flat.pop("training.epochs", None)
    if epochs is not None:
        puzzles = flat.get("data.train_puzzles", DataConfig().train_puzzles)
        if puzzles is None:
            raise UserError(f"{where}: training.epochs needs data.train_puzzles: a number, not null")
        rows = _number(epochs, "training.epochs", where) * _number(puzzles, "data.train_puzzles", where)
    if rows is not None:
        steps = int(_number(rows, "training.rows", where) // _number(batch, "training.batch_size", where))
        if steps < 1:
            raise UserError(f"{where}: {int(rows)} rows are less than one batch of {batch}; give more rows")
        flat["training.steps"] = steps
    flops = flat.pop("training.flops", None)
    if flops is not None:
        flat["training.steps"] = _steps_within(_number(flops, "training.flops", where), flat, where)
    return _ruled_lr(flat, where)


def _steps_within(budget: float, flat: Flat, where: str) -> int:
    """The most steps whose training FLOPs stay within the budget."""
    given, many = sections(flat), 10**6
    known = {key: value for key, value in given["training"].items() if key in TrainingConfig.model_fields}
    try:
        model = ModelConfig.model_validate(given["model"])
        data = DataConfig.model_validate(given["data"])
        training = TrainingConfig.model_validate({**known, "steps": many})
        sizes = shape(data)
    except (ValidationError, UserError):
        return 1  # whoever reads the whole configuration next says what is wrong
    steps = int(budget / train_flops(model, training, sizes.seq_len, sizes.vocab_size) * many)
    if steps < 1:
        raise UserError(f"{where}: {budget:g} FLOPs are less than one training step; give more")
    return steps


RULED = {
    "d_model": "model.d_model",
    "layers": "model.layers",
    "l_cycles": "model.l_cycles",
    "halt_max_steps": "model.halt_max_steps",
    "steps": "training.steps",
    "batch_size": "training.batch_size",
}
"""What a rule of the learning rate may depend on."""


def _ruled_lr(flat: Flat, where: str) -> Flat:
    """Multiply lr by (value / base) ** power for each `name: [base, power]` of `lr_rule`.

    A sweep has measured the rule to two digits, and so is the result. A rule of the batch alone is arithmetic (power 1:
    arXiv 1706.02677, 0.5: arXiv 1404.5997): only rounding errors of the product are cut off.
    """
    rule = flat.pop("training.lr_rule", None) or {}
    if not isinstance(rule, dict):
        raise UserError(
            f"{where}: training.lr_rule={rule!r} must be a mapping, such as {{d_model: [64, -0.7]}}"
        )
    recipe, factor = ModelConfig().model_dump() | TrainingConfig().model_dump(), 1.0
    for name, terms in rule.items():
        if name not in RULED or not isinstance(terms, list) or len(terms) != 2 or not _is_power(terms[1]):
            raise UserError(
                f"{where}: training.lr_rule: {name}: {terms!r}; it is one of {', '.join(RULED)} with [base, power], "
                "the power between -10 and 10, such as d_model: [64, -0.7]"
            )
        value = _number(flat.get(RULED[name], recipe[name]), name, where)
        factor *= (value / _number(terms[0], f"training.lr_rule.{name}", where)) ** terms[1]
    if rule:
        lr = _number(flat.get("training.lr", TrainingConfig().lr), "training.lr", where)
        digits = 12 if rule.keys() == {"batch_size"} else 2
        flat["training.lr"] = float(f"{lr * factor:.{digits}g}")
    return flat


def _is_power(value: Any) -> bool:
    """Whether a number is small enough for any ratio to be raised to it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 10


def _number(value: Any, key: str, where: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{where}: {key}={value!r} must be a finite number above 0")
    return value


def sections(flat: Flat) -> dict[str, dict[str, Any]]:
    """The fields of every section: `{"model.d_model": 64}` -> `{"model": {"d_model": 64}, "data": {}, ...}`."""
    found: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in flat.items():
        name, _, field = key.partition(".")
        found[name][field] = value
    return found
