"""`surface`: laws of two variables."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.claims import sentences
from trm.analysis.kinds.surface import error_at
from trm.analysis.laws import claims_of_fit

FORM: dict[str, Any] = {
    "parameters": {"E": 0.02, "A": 1.0, "a": 0.5, "B": 1.0, "b": 0.3, "R*": 12.0},
    "intervals": {"R*": [8.0, 20.0], "E": [0.01, 0.03]},
}
GROUP: dict[str, Any] = {
    "forms": {"joint": FORM, "repeated_data": FORM},
    "doubts": [],
    "means": {"y": [0.5, 0.1]},
}


def words(group: dict[str, Any]) -> str:
    spec = {"form": group["chosen"], "x": "parameters", "second": "train_flops", "y": "error"}
    return sentences(claims_of_fit({"spec": spec, "groups": [group]}))


def test_supported_laws_in_words() -> None:
    joint, repeated = {**GROUP, "chosen": "joint"}, {**GROUP, "chosen": "repeated_data"}
    assert "The worth of the augmented copies of a puzzle is 12 [8, 20] fresh puzzles at most" in words(
        repeated
    )
    assert (
        "parameters with exponent −0.5. Error falls as a power law of training compute with exponent"
        in words(joint)
    )
    assert words(joint).endswith("towards a floor of 2.0 % [1.0, 3.0].")


def test_doubtful_laws_are_not_claimed() -> None:
    doubtful = {**GROUP, "doubts": ["an exponent reaches the bound of the search"]}
    no = ": an exponent reaches the bound"
    assert f"We claim no law of error against parameters and training compute{no}" in words(
        {**doubtful, "chosen": "joint"}
    )
    assert f"the effective number of puzzles{no}" in words({**doubtful, "chosen": "repeated_data"})


def test_laws_of_two_variables_are_drawn(drawn: Drawn) -> None:
    drawn("augmentation", kind="surface", form="repeated_data")
    drawn("compute", kind="surface")


def test_the_lines_follow_the_law() -> None:
    one = np.array([1.0])
    joint = error_at({**GROUP, "chosen": "joint"}, {"parameters": 4 * one, "train_flops": one})
    assert joint == pytest.approx(0.02 + 4**-0.5 + 1)
    at = {"data.train_puzzles": 4 * one, "data.augmentations": 0 * one}
    assert error_at({**GROUP, "chosen": "repeated_data"}, at) == pytest.approx(0.02 + 4**-0.5)
