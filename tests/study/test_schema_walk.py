"""Every field of the schema has an effect, or is declared to have none: the walk over what names runs and evaluations.

What training does with each field of model, training and placement is shown in tests/training/test_knobs.py; what
evaluation does, in tests/evaluation/test_evaluate.py; here: that each field, changed alone, makes another run or
another evaluation, so that no value is ever a silent repeat.
"""

import pytest

from trm.study.fingerprint import evaluation_fingerprint, run_fingerprint, run_identity
from trm.study.schema import DataConfig, EvaluationConfig, RunConfig

SUDOKU = {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8, "pool": 400}
MAZE = {"task": "maze", "source": "generate", "maze_size": 8, "min_path": 12, "pool": 50}
ARC = {"task": "arc", "source": "json", "files": ("a.json",), "sha256": ("a" * 64,)}
FAMILIES = {"task": "arc", "source": "generate", "arc_side": 6, "pool": 50, "arc_families": ("mirror",)}
MIX = SUDOKU | {"source": "mix", "sources": ({"kind": "generate", "pool": 50},) * 2}
DATA = {
    "task": ({}, "maze"),
    "source": ({"pool": 50}, "generate"),
    "sha256": (ARC, ("b" * 64,)),
    "box_rows": (SUDOKU, 3),
    "box_cols": (SUDOKU, 3),
    "clues_min": (SUDOKU, 5),
    "clues_max": (SUDOKU, 9),
    "pool": (SUDOKU, 300),
    "maze_size": (MAZE, 9),
    "min_path": (MAZE, 13),
    "unique_path": (MAZE, True),
    "walls": (MAZE | {"maze_size": 9}, "uniform"),
    "arc_side": (ARC, 12),
    "arc_families": (FAMILIES, ("mirror", "fill+stack")),
    "arc_pairs": (FAMILIES, 5),
    "train_puzzles": (SUDOKU, 30),
    "augmentations": (SUDOKU, 3),
    "validation_puzzles": (SUDOKU, 10),
    "test_puzzles": (SUDOKU, 20),
    "sources": (MIX, ({"kind": "generate", "pool": 50, "share": 2.0}, MIX["sources"][1])),
    "hints": (SUDOKU, "auto"),
    "held_out_hints": (SUDOKU, (0, 2)),
    "curriculum": (SUDOKU, ({"until": 0.5, "hints": (0, 2)},)),
    "symmetry": (ARC, "none"),
    "seed": (SUDOKU, 1),
}
NO_IDENTITY = {
    "files": "paths: their checksums count (tests/data/test_identity.py)",
    "min_rating": "always 0",
}
EVALUATION = {
    "weights": "raw",
    "average": 3,
    "unroll": (1, 2),
    "confident": True,
    "restarts": (2,),
    "start_noise": 0.3,
    "step_noise": 0.4,
    "view_steps": 2,
    "view_puzzle_every": 3,
    "view_guesses": 2,
    "train_puzzles": 10,
    "test_puzzles": 10,
    "traces": 1,
    "steps": 3,
    "copies": 2,
}


def test_the_walk_over_data_is_complete():
    assert set(DATA) | set(NO_IDENTITY) == set(DataConfig.model_fields)


@pytest.mark.parametrize("field", DATA)
def test_each_field_of_data_makes_another_run(field):
    base, value = DATA[field]
    before = RunConfig.model_validate({"data": base})
    after = RunConfig.model_validate({"data": base | {field: value}})
    assert run_fingerprint(before) != run_fingerprint(after)
    identity = run_identity(after)  # is what the pipeline trains from
    trained = RunConfig.model_validate({key: identity[key] for key in identity if key != "recipe_version"})
    assert run_fingerprint(trained) == run_fingerprint(after)


def test_the_walk_over_evaluation_is_complete():
    assert set(EVALUATION) == set(EvaluationConfig.model_fields)


@pytest.mark.parametrize("field", EVALUATION)
def test_each_field_of_evaluation_makes_another_evaluation(field):
    base = {"view_steps": 2} if field in ("view_puzzle_every", "view_guesses") else {}
    before, changed = map(EvaluationConfig.model_validate, (base, base | {field: EVALUATION[field]}))
    assert evaluation_fingerprint(changed) != evaluation_fingerprint(before)
