"""Every field of the schema has an effect, or is declared to have none: the walk over what names runs and evaluations.

What training does with each field of model, training and placement is shown in tests/training/test_knobs.py; what
evaluation does, in tests/evaluation/test_evaluate.py; here: that each field, changed alone, makes another run or
another evaluation, so that no value is ever a silent repeat.
"""

import pytest

from tests.knobs import another
from trm.study.fingerprint import evaluation_fingerprint, run_fingerprint, run_identity
from trm.study.schema import DataConfig, EvaluationConfig, RunConfig

SUDOKU = {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8, "pool": 400}
MAZE = {"task": "maze", "source": "generate", "maze_size": 8, "min_path": 12, "pool": 50}
ARC = {"task": "arc", "source": "json", "files": ("a.json",), "sha256": ("a" * 64,)}
FAMILIES = {"task": "arc", "source": "generate", "arc_side": 6, "pool": 50, "arc_families": ("mirror",)}
SETTINGS = {
    "box_rows box_cols clues_min clues_max pool train_puzzles augmentations validation_puzzles seed": SUDOKU,
    "test_puzzles held_out_hints hints curriculum": SUDOKU,
    "maze_size min_path unique_path": MAZE,
    "walls": MAZE | {"maze_size": 9},
    "arc_side sha256 names symmetry": ARC | {"arc_side": 12},
    "arc_families arc_pairs": FAMILIES,
    "source": {"pool": 50},
    "task": {},
}
BASES = {field: base for fields, base in SETTINGS.items() for field in fields.split()}
"""Settings under which a field of data is read."""
SPECIAL = {
    "task": "maze",
    "source": "generate",
    "sha256": ("b" * 64,),
    "names": ("evaluation/a",),
    "arc_families": ("mirror", "fill+stack"),
    "hints": (0, 2),
    "held_out_hints": (0, 2),
    "curriculum": ({"until": 0.5, "hints": (0, 2)},),
}
NO_IDENTITY = {
    "files": "paths: their checksums count (tests/data/test_identity.py)",
    "min_rating": "always 0",
    "sources": "always empty",
}


def test_the_walk_over_data_is_complete():
    assert set(BASES) | set(NO_IDENTITY) == set(DataConfig.model_fields)


@pytest.mark.parametrize("field", BASES)
def test_each_field_of_data_makes_another_run(field):
    before = RunConfig.model_validate({"data": BASES[field]})
    value = another(DataConfig.model_fields[field], getattr(before.data, field))
    after = RunConfig.model_validate({"data": BASES[field] | {field: SPECIAL.get(field, value)}})
    assert run_fingerprint(before) != run_fingerprint(after)
    identity = run_identity(after)  # is what the pipeline trains from
    trained = RunConfig.model_validate({key: identity[key] for key in identity if key != "recipe_version"})
    assert run_fingerprint(trained) == run_fingerprint(after)


@pytest.mark.parametrize("field", EvaluationConfig.model_fields)
def test_each_field_of_evaluation_makes_another_evaluation(field):
    before = EvaluationConfig(view_steps=2 if field in ("view_puzzle_every", "view_guesses") else 0)
    value = another(EvaluationConfig.model_fields[field], getattr(before, field))
    changed = EvaluationConfig.model_validate(before.model_dump() | {field: value})
    assert evaluation_fingerprint(changed, {}) != evaluation_fingerprint(before, {})
