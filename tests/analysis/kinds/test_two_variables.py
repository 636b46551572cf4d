"""`joint` and `repeated`: laws of two variables."""

from __future__ import annotations

from typing import Any

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.joint import joint_sentence
from trm.analysis.kinds.repeated import repeated_sentence

FORM: dict[str, Any] = {
    "parameters": {"E": 0.02, "A": 1.0, "a": 0.5, "B": 1.0, "b": 0.3, "R*": 12.0},
    "intervals": {"R*": [8.0, 20.0], "E": [0.01, 0.03]},
}
GROUP: dict[str, Any] = {
    "forms": {"joint": FORM, "repeated_data": FORM},
    "doubts": [],
    "means": {"y": [0.5, 0.1]},
}


def test_supported_laws_in_words() -> None:
    joint, repeated = {**GROUP, "chosen": "joint"}, {**GROUP, "chosen": "repeated_data"}
    assert "at most 12 [8, 20] fresh puzzles" in repeated_sentence(repeated)
    text = joint_sentence(joint)
    assert "parameters with exponent −0.5 and of training compute with exponent −0.3" in text
    assert text.endswith("towards a floor of 2.0 % [1.0, 3.0].")


def test_doubtful_laws_are_not_claimed() -> None:
    doubtful = {**GROUP, "chosen": "joint", "doubts": ["an exponent reaches the bound of the search"]}
    assert "No joint law of parameters and training compute is claimed: an exponent" in joint_sentence(
        doubtful
    )
    assert "No repeated-data law is claimed" in repeated_sentence({**doubtful, "chosen": "repeated_data"})


def test_they_are_drawn(drawn: Drawn) -> None:
    drawn("augmentation", kind="repeated")
    drawn("compute", kind="joint")
