"""A hypothesis is supported, contradicted or undecided by the numbers of its checks; more in report_words.json."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.conftest import figure
from tests.analysis.synthetic import measured
from trm.analysis.fits import fit_table
from trm.analysis.labels import METRICS
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


HIGHER = {
    "exact_accuracy", "accuracy", "blank_accuracy", "validation_exact_accuracy", "train_exact_accuracy",
    "rows_per_second", "flops_per_second", "utilisation", "eval_puzzles_per_second",
}  # fmt: skip
"""Metrics of which more is better; all others are costs, errors and spreads."""
MIXER = "model.mixer"


@pytest.mark.parametrize("metric", METRICS)
def test_less_of_a_cost_is_better(metric: str) -> None:
    table = measured(
        [({MIXER: at}, {s: n + 0.01 * s**2 for s in range(5)}) for at, n in (("a", 0.3), ("b", 0.5))], metric
    )
    less = found(table, {"metric": metric, "where": {MIXER: "a"}, "than": {MIXER: "b"}})
    assert less.state == "undecided"  # equal differences have no interval
    table.rows[metric] += 0.01 * (table.rows["seed"] == 1) * (table.rows[MIXER] == "a")
    less = found(table, {"metric": metric, "where": {MIXER: "a"}, "than": {MIXER: "b"}})
    assert less.state == ("contradicted" if metric in HIGHER else "supported")


@pytest.mark.parametrize(
    ("values", "puzzles", "check", "state", "words"),
    [
        ([1.0] * 6, 500, {"above": 0.9}, "supported", "100.0 % [99.2, 100.0]"),
        ([0.0] * 6, 500, {"below": 0.05}, "supported", "0.0 % [0.0, 0.8]"),
        ([0.90, 0.91, 0.92], 10_000, {"above": 0.88}, "supported", "[88.4, 93.5]"),
        ([0.90, 0.91, 0.92], 50, {"above": 0.88}, "undecided", "[79.6, 96.8]"),  # few puzzles
        ([0.0, 0.1, 0.2], 10_000, {"below": 0.2}, "undecided", "10.0 % [0.0, 34.8]"),  # no share is negative
        ([1.0], 500, {"above": 0.9}, "undecided", ", one seed."),
    ],
)
def test_a_level_is_judged_with_the_error_of_seeds_and_test_set(
    values: list[float], puzzles: int, check: dict[str, float], state: str, words: str
) -> None:
    table = measured([({}, dict(enumerate(values)))], puzzles=float(puzzles))
    made = found(table, check)
    assert made.state == state
    assert words in made.why


def test_equal_losses_are_not_called_one_seed() -> None:
    table = measured([({}, dict.fromkeys(range(3), 0.5))], "cross_entropy")
    assert found(table, {"metric": "cross_entropy", "below": 0.6}).why.endswith(
        "(expected: below 0.6 nats per cell), 3 equal values."
    )


def test_only_points_of_both_sides_are_compared() -> None:
    """Rate 2 does nothing, but failed at the small width: its mean of what is left is higher."""
    rng = np.random.default_rng(0)
    points = [
        ({"model.d_model": d, "training.lr": r}, {s: a + 0.01 * rng.normal() for s in range(6)})
        for d, a in ((16, 0.3), (64, 0.9))
        for r in (1, 2)
        if (d, r) != (16, 2)
    ]
    made = found(measured(points), {"where": {"training.lr": 2}, "than": {"training.lr": 1}})
    assert made.state == "undecided"
    assert made.why.endswith("Left out: 6 of 18 measurements, whose seed and width d not every side has.")


def test_a_level_is_that_of_the_points_that_every_seed_has() -> None:
    """Two seeds lack the worse of two points: their means alone would be too high."""
    points = [({"model.layers": n}, {s: 0.9 / n + 0.01 * s for s in range(4 - 2 * (n == 2))}) for n in (1, 2)]
    made = found(measured(points), {"above": 0.5})
    assert made.why.startswith("The exact accuracy is 91.5 % [")
    assert made.why.endswith(". Left out: 2 of 6 measurements, whose layers not every seed has.")


def fit_of(slopes: tuple[float, ...], **spec: Any) -> dict[str, Any]:
    """A fit.json of power laws without a doubt, a group for each exponent."""
    groups = []
    for hue, a in enumerate(slopes):
        form = {"parameters": {"A": 1.0, "a": a}, "intervals": {"a": [a - 0.1, a + 0.1]}}
        means = {"y": [0.9, 0.1], "seeds": [3, 3]}
        group = {"hue": hue, "chosen": "power_law", "doubts": [], "means": means, "range": [[1.0, 9.0]]}
        groups.append({**group, "forms": {"power_law": form}})
    fitted = FitSpec.model_validate({"x": "train_flops", **spec}).model_dump(mode="json")
    return {"spec": fitted, "hue": "model.layers" if len(slopes) > 1 else None, "groups": groups}


def test_a_law_is_that_of_the_rows_that_the_check_names_and_of_every_group(tables: dict[str, Table]) -> None:
    check = {"metric": "error", "law": "train_flops", "between": [0.3, 0.7]}
    wide, narrow = fit_of((0.9,), where={"model.d_model": 64}), fit_of((0.5,), where={"model.d_model": 16})
    table = tables["two_decades"]
    assert found(table, check, fits=[wide, narrow]).state == "not tested"
    for width, state in ((16, "supported"), (64, "contradicted")):
        assert found(table, {**check, "where": {"model.d_model": width}}, fits=[wide, narrow]).state == state
    for second, state in ((0.5, "supported"), (0.9, "contradicted"), (0.65, "undecided")):
        made = found(table, check, fits=[fit_of((0.5, second), hue="model.layers")])
        assert made.state == state
        assert made.why.count("(expected:") == 2  # a sentence for each group
    one_budget = {
        "form": "isoflop",
        "x": "model.d_model",
        "second": "model.halt_max_steps",
        "y": "cross_entropy",
    }
    exponent = {"metric": "cross_entropy", "exponent": "model.d_model"}
    assert found(table, exponent, fits=[fit_of((0.5,), **one_budget)]).state == "not tested"  # not of compute
