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


def test_slugs_tell_figures_apart() -> None:
    specs = [
        {"kind": "law", "x": "parameters"},
        {"kind": "law", "x": "train_flops", "hue": "model.d_model"},
        {"kind": "curves"},
        {"kind": "curves", "metric": "train/loss"},
        {"kind": "heatmap", "x": "model.l_cycles", "y": "model.h_cycles"},
        {"kind": "law", "name": "mine", "x": "parameters"},
    ]
    slugs = [FIGURE.validate_python(spec).slug for spec in specs]
    assert slugs[:2] == ["law-parameters", "law-train_flops-d_model"]
    assert slugs[-1] == "mine"
    assert len(set(slugs)) == len(specs)


def test_two_variable_laws_need_their_second_variable() -> None:
    with pytest.raises(ValidationError, match="second"):
        FitSpec(form="joint", x="parameters")
