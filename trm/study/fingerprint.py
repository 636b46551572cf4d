"""Identity by content: canonical JSON and its SHA-256.

A run is named by what its result depends on, never by where or when it ran. Fields at their schema defaults are left
out, so a new field with a neutral default changes no existing name.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trm.study.dataset_identity import training_identity
from trm.study.horizon import initial_share
from trm.study.schema import DataConfig, EvaluationConfig, RunConfig
from trm.study.tasks import spec_of

RECIPE_VERSION = 1
"""Raise it when the mathematics of training changes: every run then gets a new name. The test of a tiny run's pinned
loss (tests/training) is a reminder."""


def canonical_json(value: Any) -> str:
    """The canonical text of a JSON value: sorted keys, no spaces, integral floats as `1.0`, no NaN.

    Raises:
        TypeError: for a value without a stable form (sets, objects, non-string keys).
        ValueError: for NaN and infinities.
    """
    return _text(_stable(value))


def _text(stable: Any) -> str:
    return json.dumps(stable, sort_keys=True, separators=(",", ":"), allow_nan=False)


STABLE = frozenset((str, int, bool, type(None)))
"""Most values, for which no call is worth its time: an identity has fifty, and a study thousands of runs."""


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{list(value)} are not stable keys: keys must be text")
        return {key: item if type(item) in STABLE else _stable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_stable(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value  # -0.0 becomes 0.0


def digest(value: Any) -> str:
    """SHA-256 (64 hexadecimal digits) of a value's canonical JSON."""
    return _sha256(_stable(value))


def _sha256(stable: Any) -> str:
    return hashlib.sha256(_text(stable).encode()).hexdigest()


def run_identity(config: RunConfig) -> dict[str, Any]:
    """What a run's result depends on: the recipe version and the differences from the schema's defaults."""
    identity = config.model_dump(exclude_defaults=True)
    data = training_identity(config.data)
    if config.model.mixer == "mlp":
        identity.get("model", {}).pop("heads", None)  # the MLP mixer ignores heads: equal points are one run
    placed = {"placement": identity["placement"]} if identity.get("placement") else {}
    # runs that float32 can tell from those whose EMA started at the initial weights; longer ones keep their names
    corrected = {"ema": "bias-corrected"} if initial_share(config.training) > 1e-7 else {}
    return {
        "recipe_version": RECIPE_VERSION,
        "model": identity.get("model", {}),
        "data": data,
        "training": identity.get("training", {}),
        "seed": config.seed,
        **placed,
        **corrected,
    }


def run_fingerprint(config: RunConfig) -> str:
    """SHA-256 of a run's identity."""
    return digest(run_identity(config))


def run_names(config: RunConfig, seeds: Sequence[int]) -> list[str]:
    """`<slug>-s<seed>-<hash8>` of a run with each seed, such as sudoku9-mlp-d512-...-s0-1a2b3c4d."""
    slug, identity = _slug(config), _stable(run_identity(config))
    return [f"{slug}-s{seed}-{_sha256({**identity, 'seed': seed})[:8]}" for seed in seeds]


def evaluation_marks(data: DataConfig) -> dict[str, str]:
    """How an evaluation decides what earlier versions decided otherwise: entries of its file and of its identity."""
    return {"ties": "mean halt probability"} if spec_of(data.task).votes else {}


def evaluation_fingerprint(config: EvaluationConfig, marks: Mapping[str, str]) -> str:
    """SHA-256 of an evaluation's settings and `evaluation_marks`; the folder's name identifies the run."""
    return digest({**config.model_dump(exclude_defaults=True), **marks})


def task_slug(data: DataConfig) -> str:
    """Task and size in one word, e.g. `sudoku9`, `maze30`, `arc30`."""
    return f"{data.task}{spec_of(data.task).side(data)}"


def _slug(config: RunConfig) -> str:
    mixer = {"mlp": "mlp", "attention": "att"}[config.model.mixer]
    puzzles = config.data.train_puzzles
    place = config.placement
    placed = "-" + place.backend if place.backend != "any" else ""
    placed += f"-w{place.workers}" if place.workers else ""
    return (
        f"{task_slug(config.data)}-{mixer}-d{config.model.d_model}-T{config.model.h_cycles}n{config.model.l_cycles}"
        f"-p{puzzles or 'all'}a{config.data.augmentations}-b{config.training.batch_size}{placed}"
    )
