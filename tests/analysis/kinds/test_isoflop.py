"""`isoflop`: the best width at equal compute."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import WIDTHS, studied_widths
from tests.analysis.conftest import figure
from tests.analysis.synthetic import experiment, measured
from trm.analysis.drawing import save, styled
from trm.analysis.findings import Finding, told
from trm.analysis.fits import fit_table
from trm.analysis.fits.optimum import best_of
from trm.analysis.kinds import draw, fit_and_draw
from trm.analysis.laws import findings_of_fit, followed
from trm.analysis.specs import FitSpec, TableSpec
from trm.analysis.tables import Table, collect, load
from trm.study.schema import RunConfig

SPEC = {"form": "isoflop", "x": "model.d_model", "second": "train_flops", "y": "cross_entropy"}


def finding_of(group: dict[str, Any]) -> Finding:
    """The first finding of a fit's only group."""
    return findings_of_fit({"spec": SPEC, "groups": [group]})[0]


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


def test_the_best_value_at_equal_compute_and_its_exponent_are_found(tmp_path: Path) -> None:
    table, x = spent(tmp_path, 0.25), "model.halt_max_steps"
    table.rows[x] = table.rows["model.d_model"]
    spec = figure(kind="isoflop", best=x, y="error")
    fit = fit_table(table, spec.fits("isoflop")[0].model_copy(update={"bootstrap": 200}))
    group = fit["groups"][0]
    assert [item["edge"] for item in group["optima"]] == [False] * 5
    low, high = group["laws"]["x"]["interval"]
    assert low < 0.25 < high
    assert group["laws"]["best"]["value"] == pytest.approx(-0.3, abs=0.05)  # of the same parabolas
    assert [item["steps"] for item in group["rulers"]] == [8]
    with styled():
        drawing = draw(spec, [table], [{**fit, "spec": spec.fits("isoflop")[0].model_dump(mode="json")}])
        save(drawing, tmp_path / "isoflop.pdf")
    assert drawing.strength is not None
    assert drawing.answer.endswith("measured after 8 test steps.")


def test_a_curve_holds_the_runs_of_one_value_of_equal(tmp_path: Path) -> None:
    """Of three values that are no budgets, each gets its own optimum."""
    table = spent(tmp_path, 0.25)
    budgets = sorted(table.rows["train_flops"].round(-9).unique())
    table.rows["model.halt_max_steps"] = (
        table.rows["train_flops"].round(-9).map(lambda c: 2 ** budgets.index(c))
    )
    spec = figure(kind="isoflop", y="error", equal="model.halt_max_steps")
    (law,) = spec.fits("isoflop")
    group = fit_table(table, law.model_copy(update={"bootstrap": 20}))["groups"][0]
    assert [item["second"] for item in group["optima"]] == pytest.approx([1, 2, 4, 8, 16])


def test_a_best_width_at_the_edge_of_the_grid_only_bounds_it(tmp_path: Path) -> None:
    table = spent(tmp_path, 0.9)
    fit = fit_table(table, figure(kind="isoflop", y="error").fits("isoflop")[0])
    group = fit["groups"][0]
    assert any(item["edge"] for item in group["optima"])
    assert "undecided" in told(findings_of_fit(fit))


@pytest.mark.parametrize(
    ("name", "x", "exponents"),
    [
        ("isoflop", "model.d_model", {8: 0.52, 32: 0.52, 0: 0.52}),
        ("supervision_compute", "model.halt_max_steps", {4: 0.25, 8: 0.46, 16: 0.51, 32: 0.55, 0: 0.58}),
    ],
)
def test_kept_exponents_are_those_of_a_refit_by_another_hand(
    name: str, x: str, exponents: dict[int, float]
) -> None:
    """By plain least squares through the vertices, of each number of test steps; 0: each run at its best."""
    table = load(f"docs/results/{name}_laptop/table.csv")
    fit = fit_table(table, FitSpec.model_validate({**SPEC, "x": x, "bootstrap": 50}))
    group = fit["groups"][0]
    assert {item["steps"]: round(item["value"], 2) for item in group["rulers"]} == exponents
    ruler = f"{group['ruler']} test steps; {exponents[min(exponents, key=lambda n: n or 99)]:g} at "
    assert finding_of(group).ruler.startswith(ruler)
    if name == "isoflop":
        best = [round(item["best"], 3) for item in group["optima"]]
        assert best == [0.734, 0.419, 0.279, 0.166, 0.124, 0.106]
        assert group["laws"]["best"]["value"] == pytest.approx(-0.646, abs=0.01)
        assert group["laws"]["best"]["curvature"]["value"] == pytest.approx(0.111, abs=0.001)


def test_configurations_of_one_width_and_budget_compete(tmp_path: Path) -> None:
    """A second setting that is worse everywhere changes neither the best width nor the loss there."""
    table = spent(tmp_path, 0.25)
    wanted = FitSpec.model_validate({**SPEC, "y": "error", "bootstrap": 20})
    rows = table.rows
    worse = rows.assign(point=rows["point"] + 1000, run=rows["run"] + "w", error=rows["error"] * 1.5)
    alone, both = (
        best_of(part, wanted)["optima"] for part in (rows, pd.concat([rows, worse], ignore_index=True))
    )
    assert [item["x"] for item in both] == pytest.approx([item["x"] for item in alone])
    assert [item["best"] for item in both] == pytest.approx([item["best"] for item in alone])


@pytest.mark.parametrize(("curvature", "exponent", "claimed"), [("measured", 0.5, True), ("0.4", 0.0, False)])
def test_a_law_is_claimed_of_simulated_studies_where_there_is_one(
    curvature: str, exponent: float, claimed: bool
) -> None:
    """With seeds shared by all points. Widths that grow with the budget feign a law where the best one is the same."""
    bends, width = next(truth[1::2] for truth in WIDTHS if truth[::2] == (curvature, exponent))
    groups = (studied_widths(bends, exponent, width, index, 0.7) for index in range(10))
    laws = sum(bool(finding_of(group).sign) for group in groups)
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
    found = finding_of(group)
    assert found.value == pytest.approx(0.2, abs=0.05)
    assert found.against.startswith("between 6.3")
    assert "by a local exponent of 0.2" in found.text
    assert not followed(group)


def test_three_widths_are_drawn_and_named_although_they_have_no_parabola() -> None:
    points = [{"model.d_model": d, "data.train_puzzles": n} for d in (16, 32, 64) for n in (10, 100)]
    table = measured([(point, {0: 0.5, 1: 0.7}) for point in points], cross_entropy=0.4)
    table.rows["train_flops"] = 1e9 * table.rows["data.train_puzzles"]
    with styled():
        drawing = fit_and_draw(figure(kind="isoflop", equal="data.train_puzzles"), "t", [table])
    left = drawing.canvas.axes[0]
    assert len([line for line in left.lines if line.get_marker() == "o"]) == 6
    assert {text.get_text() for text in left.texts} == {"10", "100"}
    assert drawing.title == "The best width d at equal unique training puzzles"
    assert left.get_title("left").replace("\n", " ") == "Test cross entropy at equal unique training puzzles"
