"""`surface`: laws of two variables."""

from typing import Any

import numpy as np
import pytest

from trm.analysis.kinds.surface import error_at
from trm.analysis.laws import findings_of_fit

PARAMETERS = {"E": 0.02, "A": 1.0, "a": 0.5, "B": 1.0, "b": 0.3, "R*": 12.0}
FORM = {"parameters": PARAMETERS, "intervals": {"R*": [8.0, 20.0], "E": [0.01, 0.03]}}


def group(chosen: str, *doubts: str) -> dict[str, Any]:
    """A group of fit.json."""
    return {"chosen": chosen, "forms": {chosen: FORM}, "doubts": [*doubts], "means": {"y": [0.5, 0.1]}}


def words(chosen: str, *doubts: str) -> str:
    spec = {"form": chosen, "x": "parameters", "second": "train_flops", "y": "error"}
    return " ".join(item.text for item in findings_of_fit({"spec": spec, "groups": [group(chosen, *doubts)]}))


def test_supported_and_doubtful_laws_in_words() -> None:
    worth = "The worth of the augmented copies of a puzzle is 12 [8, 20] fresh puzzles at most."
    assert worth in words("repeated_data")
    doubt = "an exponent reaches the bound of the search"
    said = f"No law of error against parameters and training compute is fitted; {doubt}."
    assert words("joint", doubt) == said


def test_the_lines_follow_the_law() -> None:
    one = np.array([1.0])
    joint = error_at(group("joint"), {"parameters": 4 * one, "train_flops": one})
    assert joint == pytest.approx(0.02 + 4**-0.5 + 1)
    at = {"data.train_puzzles": 4 * one, "data.augmentations": 0 * one}
    assert error_at(group("repeated_data"), at) == pytest.approx(0.02 + 4**-0.5)
