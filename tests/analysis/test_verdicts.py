"""A hypothesis is supported, contradicted or undecided by the numbers of its checks."""

from __future__ import annotations

from typing import Any

import pytest

from trm.analysis.fits import fit_table
from trm.analysis.report.verdicts import Verdict, verdict
from trm.analysis.specs import Check, FitSpec
from trm.analysis.tables import Table


def found(table: Table, *checks: dict[str, Any], fits: list[dict[str, Any]] | None = None) -> Verdict:
    return verdict([Check.model_validate(check) for check in checks], table, fits or [])


def test_a_difference_decides_by_its_interval(tables: dict[str, Table]) -> None:
    deep, flat = {"model.l_cycles": 2, "model.h_cycles": 2}, {"model.l_cycles": 1, "model.h_cycles": 1}
    wide, narrow = {"model.d_model": 96}, {"model.d_model": 16}
    better = found(tables["model_size"], {"where": wide, "than": narrow})
    assert better.state == "supported"
    assert "exact accuracy rises from 62.3 % with width d = 16 to" in better.why
    assert found(tables["model_size"], {"where": narrow, "than": wide}).state == "contradicted"
    assert (
        found(tables["model_size"], {"metric": "error", "where": wide, "than": narrow}).state == "supported"
    )
    assert found(tables["recursion"], {"where": deep, "than": flat}).state in ("supported", "undecided")
    both = found(tables["model_size"], {"where": wide, "than": narrow}, {"where": wide, "above": 0.999})
    assert both.state == "contradicted"


def test_levels_laws_and_what_was_not_run(tables: dict[str, Table]) -> None:
    table = tables["two_decades"]
    assert found(table, {"where": {"training.steps": 12000}, "above": 0.5}).state == "supported"
    assert "(expected: above 50 %)" in found(table, {"where": {"training.steps": 12000}, "above": 0.5}).why
    assert found(table, {"where": {"training.steps": 5}, "above": 0.5}).state == "not tested"
    fit = fit_table(table, FitSpec(x="train_flops", bootstrap=60))
    assert found(table, {"metric": "error", "law": "train_flops"}, fits=[fit]).state == "supported"
    narrow = {"metric": "error", "law": "train_flops", "between": [0.0, 0.1]}
    assert found(table, narrow, fits=[fit]).state == "contradicted"
    few = fit_table(tables["model_size"], FitSpec(x="parameters", bootstrap=60))
    assert (
        found(tables["model_size"], {"metric": "error", "law": "parameters"}, fits=[few]).state == "undecided"
    )
    assert verdict([Check(above=0.5)], None, []).state == "not tested"
    with pytest.raises(ValueError, match="give one of law, exponent, than"):
        Check(law="parameters", above=0.5)
