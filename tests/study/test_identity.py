"""Identity by content: what a run's name depends on, and what it must not depend on."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.study.make_golden import golden_studies
from trm.study import fingerprint
from trm.study.fingerprint import canonical_json, digest, run_fingerprint
from trm.study.schema import RunConfig

GOLDEN = Path(__file__).with_name("golden_fingerprints.json")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()), ids=lambda case: case["fingerprint"][:8])
def test_fingerprints_never_change_unless_the_recipe_version_is_raised(case):
    assert case["recipe_version"] == fingerprint.RECIPE_VERSION, (
        "write new golden fingerprints for the new version"
    )
    assert run_fingerprint(RunConfig.model_validate(case["config"])) == case["fingerprint"]


def test_defaults_and_unread_fields_do_not_count():
    def name(**sections):
        return run_fingerprint(RunConfig.model_validate(sections))

    assert name() == name(training={"lr": 1e-4, "weight_decay": 1})
    assert name() == name(model={"heads": 4})  # which the MLP mixer does not read


@given(json_values)
def test_canonical_json_is_one_text_for_one_value(value):
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    if isinstance(value, dict):
        assert canonical_json(dict(reversed(value.items()))) == text
    assert len(digest(value)) == 64


@pytest.mark.parametrize("value", [{1}, object(), {1: "a"}, b"x", float("nan"), float("inf")])
def test_values_without_a_stable_form_are_refused(value):
    with pytest.raises((TypeError, ValueError), match="stable keys|not JSON serializable|not JSON compliant"):
        canonical_json([value])


def test_the_shipped_studies_make_the_runs_that_they_made():
    """If a change of points was meant: python -m tests.study.make_golden."""
    assert golden_studies() == json.loads(Path(__file__).with_name("golden_studies.json").read_text())
