"""Specs: typed, hashable by their JSON, and light enough for the Snakefile."""

import pytest
from pydantic import ValidationError

from trm.analysis.kinds import FIGURE, KINDS
from trm.analysis.specs import FitSpec


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_how_to_read_it(kind: str) -> None:
    assert KINDS[kind].Spec.reading
    assert not KINDS[kind].Spec.reading.endswith(".")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "law", "x": "data.train_puzles"}, "did you mean 'data.train_puzzles'?"),
        ({"kind": "law", "x": "parameters", "y": "eror"}, "did you mean 'error'?"),
        ({"kind": "curves", "where": {"evaluation.policy": "fixed"}}, "did you mean 'policy'?"),
        ({"kind": "law", "x": "parameters", "colour": "red"}, "Extra inputs"),
        ({"kind": "pie"}, "does not match any of the expected tags"),
        ({"kind": "law", "x": "parameters", "where": {"training.steps_": 3}}, "mean 'training.steps'?"),
        ({"kind": "scaling_laws", "panels": []}, "at least 1 item"),
    ],
)
def test_wrong_specs_are_refused_with_the_reason(spec: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        FIGURE.validate_python(spec)
    assert words in str(raised.value)


def test_two_variable_laws_need_their_second_variable() -> None:
    with pytest.raises(ValidationError, match="second"):
        FitSpec(form="joint", x="parameters")


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "isoflop", "y": "exact_accuracy"},
        {"kind": "heatmap", "x": "training.lr", "y": "training.batch_size", "z": "accuracy", "optimum": True},
        {"kind": "scaling_laws", "panels": [{"experiment": "a", "show": "loss", "y": "exact_accuracy"}]},
    ],
)
def test_the_best_value_is_the_lowest_of_what_is_fitted(spec: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="but its highest is the best: take error or cross_entropy"):
        FIGURE.validate_python(spec)
    for form in ("isoflop", "optimum"):
        with pytest.raises(ValidationError, match="seeks the lowest accuracy"):
            FitSpec(form=form, x="model.d_model", second="train_flops", y="accuracy")
    assert FitSpec(form="optimum", x="training.lr", second="train_flops", y="flops_to_80")
    shares = {"kind": "heatmap", "x": "training.lr", "y": "training.batch_size", "optimum": True}
    assert FIGURE.validate_python(shares).fits("a")[0].y == "error"  # the accuracy's complement
