"""A hypothesis is supported, contradicted or undecided by the numbers of its checks; more in report_words.json."""

from typing import Any

import pytest

from tests.analysis.conftest import figure
from trm.analysis.fits import fit_table
from trm.analysis.report.verdicts import Verdict, verdict
from trm.analysis.specs import Check, FitSpec
from trm.analysis.tables import Table


def found(table: Table, *checks: dict[str, Any], fits: list[dict[str, Any]] | None = None) -> Verdict:
    return verdict([Check.model_validate(check) for check in checks], table, fits or [])


def test_a_difference_decides_by_its_interval(tables: dict[str, Table]) -> None:
    wide, narrow, table = {"model.d_model": 96}, {"model.d_model": 16}, tables["model_size"]
    assert found(table, {"where": narrow, "than": wide}).state == "contradicted"
    assert found(table, {"metric": "error", "where": wide, "than": narrow}).state == "supported"
    both = found(table, {"where": wide, "than": narrow}, {"where": wide, "above": 0.999})
    assert both.state == "contradicted"


def test_laws_and_what_was_not_run(tables: dict[str, Table]) -> None:
    table = tables["two_decades"]
    assert found(table, {"where": {"training.steps": 5}, "above": 0.5}).state == "not tested"
    fit = fit_table(table, FitSpec(x="train_flops", bootstrap=60))
    steep = {"metric": "error", "law": "train_flops", "between": [0.0, 0.1]}
    assert found(table, steep, fits=[fit]).state == "contradicted"
    assert verdict([Check(above=0.5)], None, []).state == "not tested"
    with pytest.raises(ValueError, match="give one of law, exponent, than"):
        Check(law="parameters", above=0.5)


@pytest.mark.parametrize(
    ("at_8", "end"),
    [
        ((0.5, [0.45, 0.55]), "(expected: 0.3 to 0.8)."),
        ((0.2, [0.1, 0.4]), "At 8 test steps it is 0.20 [0.10, 0.40]."),
        ((None, None), "its side changes at 8 steps."),
    ],
)
def test_an_exponent_counts_only_if_other_test_steps_agree(
    tables: dict[str, Table], at_8: tuple[Any, Any], end: str
) -> None:
    spec = figure(kind="isoflop", best="model.halt_max_steps").fits("isoflop")[0].model_dump(mode="json")
    law = {"value": 0.5, "interval": [0.4, 0.6], "doubts": [], "local": None}
    rulers = [{"steps": 8, "value": at_8[0], "interval": at_8[1]}]
    fit = {"spec": spec, "groups": [{"laws": {"x": law}, "optima": [], "ruler": 32, "rulers": rulers}]}
    check = {"metric": "cross_entropy", "exponent": "model.halt_max_steps", "between": [0.3, 0.8]}
    made = found(tables["two_decades"], check, fits=[fit])
    assert made.state == ("supported" if end.startswith("(") else "undecided")
    assert made.why.endswith(end)
