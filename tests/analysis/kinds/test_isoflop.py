"""`isoflop`: the best width at equal compute."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import isoflop
from tests.analysis.conftest import figure
from tests.analysis.synthetic import experiment
from trm.analysis.claims import Claim, sentences
from trm.analysis.drawing import save, styled
from trm.analysis.fits import fit_table
from trm.analysis.fits.optimum import best_of
from trm.analysis.kinds import draw
from trm.analysis.laws import claims_of_fit, followed
from trm.analysis.specs import FitSpec, TableSpec
from trm.analysis.tables import Table, collect
from trm.study.schema import RunConfig

SPEC = {"form": "isoflop", "x": "model.d_model", "second": "train_flops", "y": "cross_entropy"}


def claim_of(group: dict[str, Any]) -> Claim:
    """The first claim of a fit's only group."""
    return claims_of_fit({"spec": SPEC, "groups": [group]})[0]


def spent(root: Path, exponent: float) -> Table:
    """Runs at five budgets over two decades whose best width grows as compute to the power `exponent`."""

    def error(config: RunConfig) -> float:
        width, budget = config.model.d_model, config.training.steps * config.model.d_model
        best = 32 * (budget / 32_000) ** exponent
        return 0.08 * (budget / 32_000) ** -0.3 * np.exp(0.25 * np.log(width / best) ** 2)

    budgets, widths = (3_200, 10_000, 32_000, 100_000, 320_000), (8, 16, 32, 64, 128)
    points = [{"model.d_model": d, "training.steps": round(c / d)} for c, d in product(budgets, widths)]
    table = collect(TableSpec.model_validate(experiment(root, "isoflop", points, 3, error)))
    table.rows["train_flops"] = 1e6 * table.rows["model.d_model"] * table.rows["training.steps"]
    return table


@pytest.mark.parametrize("x", ["model.d_model", "model.halt_max_steps"])
def test_the_best_value_at_equal_compute_and_its_exponent_are_found(tmp_path: Path, x: str) -> None:
    table = spent(tmp_path, 0.25)
    table.rows[x] = table.rows["model.d_model"]
    spec = figure(kind="isoflop", best=x, y="error")
    fit = fit_table(table, spec.fits("isoflop")[0].model_copy(update={"bootstrap": 200}))
    group = fit["groups"][0]
    assert [item["edge"] for item in group["optima"]] == [False] * 5
    low, high = group["law"]["intervals"]["a"]
    assert low < 0.25 < high
    assert group["law"]["parameters"]["steps"] == pytest.approx(0.75, abs=0.1)
    with styled():
        drawing = draw(spec, [table], [{**fit, "spec": spec.fits("isoflop")[0].model_dump(mode="json")}])
        save(drawing, tmp_path / "isoflop.pdf")
    assert drawing.strength is not None
    assert "ten times the training compute is best spent on 1." in drawing.answer


def test_a_best_width_at_the_edge_of_the_grid_only_bounds_it(tmp_path: Path) -> None:
    table = spent(tmp_path, 0.9)
    fit = fit_table(table, figure(kind="isoflop", y="error").fits("isoflop")[0])
    group = fit["groups"][0]
    assert any(item["edge"] for item in group["optima"])
    assert "too few for a power law" in sentences(claims_of_fit(fit))


@pytest.mark.parametrize(("last", "missed"), [([70.0, 80.0], True), ([90.0, 110.0], False)])
def test_an_optimum_that_the_law_misses_is_named(last: list[float], missed: bool) -> None:
    law = {"parameters": {"a": 0.5, "A": 1e-5, "steps": 0.3}, "enough_points": True, "doubts": []}
    law |= {"local": None, "intervals": {"a": [0.4, 0.6], "steps": [0.2, 0.4]}}
    optima = [
        {"second": second, "x_interval": interval, "edge": False, "doubling": {"value": 0.2}}
        for second, interval in ((1e10, [0.9, 1.1]), (1e12, [9.0, 11.0]), (1e14, last))
    ]
    claim = claim_of({"law": law, "optima": optima})
    said = "The power law lies outside the interval of the best width d at training compute of 10¹⁴ FLOPs."
    assert (said in claim.notes) is missed


@pytest.mark.parametrize(("curvature", "exponent", "claimed"), [("measured", 0.5, True), ("0.4", 0.0, False)])
def test_a_law_is_claimed_of_simulated_studies_where_there_is_one(
    curvature: str, exponent: float, claimed: bool
) -> None:
    """With seeds shared by all points. Widths that grow with the budget feign a law where the best one is the same."""
    bends, width = next(truth[1::2] for truth in isoflop.TRUTHS if truth[::2] == (curvature, exponent))
    groups = (isoflop.studied(bends, exponent, width, index, 0.7) for index in range(10))
    laws = sum(bool(claim_of(group).sign) for group in groups)
    assert laws >= 7 if claimed else laws <= 1


def test_a_best_width_that_bends_is_no_law() -> None:
    """Exponents 0.7 and then 0.2, with little noise: the one at the largest budgets is said, as data and in words."""
    rows = []
    for budget in np.geomspace(1e10, 1e13, 6):
        best = 64 * (budget / 3e11) ** (0.7 if budget < 3e11 else 0.2)
        for width, seed in product(best * np.array([0.4, 0.7, 1.0, 1.5, 2.3, 9.0]), range(3)):
            noise = 0.01 * np.random.default_rng([seed, int(budget)]).standard_normal()
            y = np.exp(0.4 * np.log(width / best) ** 2 + noise)
            rows.append(
                (f"{budget}-{width}", width, budget, budget / width, y, f"{budget}-{width}-{seed}", seed)
            )
    columns = ["point", "model.d_model", "train_flops", "training.steps", "cross_entropy", "run", "seed"]
    frame = pd.DataFrame(rows, columns=columns).assign(finished=True, experiment="isoflop")
    group = best_of(frame, FitSpec(bootstrap=200, **SPEC))
    claim = claim_of(group)
    assert claim.value == pytest.approx(0.2, abs=0.05)
    assert claim.against.startswith("between 6.31")
    assert "by a local exponent of 0.2" in claim.text()
    assert "we claim no power law: over all budgets the curve bends (curvature" in claim.text()
    assert not followed(group)
