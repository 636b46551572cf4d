"""Fits against known laws, scipy, and finite differences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares

from benchmarks.fits import Truth, coverage
from tests.analysis.synthetic import experiment, measured
from trm.analysis.fits import fit_table
from trm.analysis.fits.bootstrap import resample, within
from trm.analysis.fits.compare import choose, doubts, held_out
from trm.analysis.fits.data import gather
from trm.analysis.fits.forms import FORMS, normalise
from trm.analysis.fits.run import round_number
from trm.analysis.fits.solve import solve
from trm.analysis.specs import FitSpec, TableSpec
from trm.analysis.stats import seed_spread
from trm.analysis.tables import Table, collect, load, merge
from trm.errors import UserError

PUZZLES = np.array([[100.0, 250, 500, 1000, 2000, 5000, 10000]])
RECURRING = [[100.0, 300, 1000, 3000, 300, 300, 300, 300], [0.0, 0, 0, 0, 3, 10, 30, 300]]
SIZES = [[n, c] for n in (1e6, 5e6, 2e7) for c in (1e17, 1e18, 1e19)]
TRUTHS = {
    "constant": Truth("constant", (0.2,), PUZZLES),
    "power_law": Truth("power_law", (20.0, 0.6), PUZZLES),
    "power_law_floor": Truth("power_law_floor", (0.05, 20.0, 0.7), PUZZLES),
    "exponential": Truth("exponential", (0.05, 0.7, 900.0), PUZZLES),
    "sigmoid": Truth("sigmoid", (0.05, 0.7, 900.0, 1.3), PUZZLES),
    "repeated_data": Truth("repeated_data", (0.03, 20.0, 0.6, 15.0), np.array(RECURRING)),
    "joint": Truth("joint", (0.03, 3e3, 0.7, 3e9, 0.58), np.array(SIZES).T),
    "critical_batch": Truth("critical_batch", (500.0, 1000.0), PUZZLES),
}


@pytest.mark.parametrize("name", FORMS)
def test_jacobians_agree_with_finite_differences(name: str) -> None:
    truth, form = TRUTHS[name], FORMS[name]
    u, _ = normalise(form, truth.x)
    rng = np.random.default_rng(0)
    phi = rng.normal(0, 0.4, (5, len(form.parameters)))
    value, jacobian = form.value(phi, u)
    for index in range(phi.shape[1]):
        step = np.zeros(phi.shape[1])
        step[index] = 1e-6
        slope = (form.log_value(phi + step, u) - form.log_value(phi - step, u)) / 2e-6
        np.testing.assert_allclose(jacobian[..., index], slope, atol=1e-6)
    assert value.shape == (5, truth.x.shape[1])


@pytest.mark.parametrize("name", FORMS)
def test_exact_data_give_back_their_law(name: str) -> None:
    truth, form = TRUTHS[name], FORMS[name]
    log_y = np.log(truth.value(truth.x))
    u, scale = normalise(form, truth.x)
    found = solve(form, u, log_y[None], 0.1, form.starts(u, np.exp(log_y)), refine=12)
    assert found.converged[0]
    assert found.cost[0] < 1e-8
    np.testing.assert_allclose(form.public(found.phi, scale)[0], truth.parameters, rtol=0.02)


@pytest.mark.parametrize("name", ["power_law", "power_law_floor", "critical_batch"])
def test_the_solver_agrees_with_scipy(name: str) -> None:
    truth, form = TRUTHS[name], FORMS[name]
    u, _ = normalise(form, truth.x)
    log_y = np.log(truth.value(truth.x)) + 0.1 * np.random.default_rng(1).standard_normal(truth.x.shape[1])
    delta = 0.08
    ours = solve(form, u, log_y[None], delta, form.starts(u, np.exp(log_y)), refine=12)

    def residual(phi: np.ndarray) -> np.ndarray:
        return form.log_value(phi[None], u)[0] - log_y

    best = min(
        least_squares(residual, start, loss="huber", f_scale=delta, xtol=1e-12, ftol=1e-12).cost
        for start in form.starts(u, np.exp(log_y))[::4]
    )
    assert ours.cost[0] == pytest.approx(best, rel=1e-4)


def test_an_outlying_seed_hardly_moves_the_law() -> None:
    truth, form = TRUTHS["power_law"], FORMS["power_law"]
    x = np.repeat(truth.x, 3, axis=1)
    log_y = np.log(truth.value(x))
    log_y[4] += 2.0
    u, scale = normalise(form, x)
    found = solve(form, u, log_y[None], 0.05, form.starts(u, np.exp(log_y)))
    assert form.public(found.phi, scale)[0, 1] == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_the_truth(seeds: int) -> None:
    """The full study is benchmarks/fits.py; 40 simulations bound the share within +-8 %."""
    found = coverage(TRUTHS["power_law_floor"], seeds, 40, refits=150)
    for share in found.values():
        assert 0.85 <= share <= 1.0


def test_residuals_are_scaled_and_single_seeds_borrow() -> None:
    log_y, group = np.array([0.0, 1.0, 2.0, 5.0]), np.array([0, 0, 0, 1])
    residuals, _ = within(log_y, group)
    np.testing.assert_allclose(residuals[:3], np.array([-1, 0, 1]) * np.sqrt(3 / 2))
    assert seed_spread(log_y, group) == pytest.approx(1.0)
    samples = resample(log_y, group, 200, seed=0)
    assert samples.shape == (200, 4)
    assert samples[:, 3].std() > 0
    np.testing.assert_array_equal(samples, resample(log_y, group, 200, seed=0))
    assert (resample(log_y[[0, 3]], group[[0, 3]], 5, 0) == log_y[[0, 3]]).all()


def group_of(table: Table, **spec: Any) -> dict[str, Any]:
    return fit_table(table, FitSpec.model_validate({"bootstrap": 200, **spec}))["groups"][0]


def law_of(root: Any, *sizes: int, seeds: int = 3, **spec: Any) -> dict[str, Any]:
    """The fit of a power law with exponent 0.7 over some training sets."""
    points = [{"data.train_puzzles": n} for n in sizes]
    table = table_with(root, lambda c: 5 * (c.data.train_puzzles or 1) ** -0.7, points, seeds)
    return group_of(table, **spec)


def test_a_fit_holds_everything_a_reader_needs(tables: dict[str, Table]) -> None:
    group = group_of(tables["data_size"], target=0.85)
    assert set(group["forms"]) == {"constant", "power_law", "power_law_floor", "exponential", "sigmoid"}
    best = group["forms"][group["chosen"]]
    low, high = best["intervals"]["a"]
    assert low < best["parameters"]["a"] < high
    assert best["aicc"] < group["forms"]["constant"]["aicc"]
    assert best["held_out"]["x"] == 1000
    assert best["failed_share"] < 0.02
    assert best["refits"] == 200
    assert 100 < best["target"]["x"] < 400
    assert 0.03 < group["seed_spread"] < 0.2


def test_configurations_of_equal_cost_are_points_of_their_own() -> None:
    """The kept table has d 16 and d 24 at exactly 14,998,118,400 FLOPs, and d 8 and d 12 at another budget's cost."""
    table = load("docs/results/isoflop_laptop/table.csv")
    spec = FitSpec(x="train_flops", y="cross_entropy", best=True, bootstrap=1000)
    group = fit_table(table, spec)["groups"][0]
    assert group["means"]["seeds"] == [6] * 6
    assert group["means"]["y"][0] == pytest.approx(0.568, abs=0.001)
    law = group["forms"]["power_law"]
    assert law["parameters"]["a"] == pytest.approx(0.600, abs=0.001)
    assert law["intervals"]["a"] == pytest.approx([0.538, 0.690], abs=0.02)


def test_one_law_never_averages_runs_that_differ() -> None:
    """With a hue or without: another axis is refused, unless `where` or the hue itself settles it."""
    places = [
        {"data.train_puzzles": size, "model.d_model": width, "training.lr": rate}
        for size in (100, 200, 400) for width in (16, 32) for rate in (0.1, 0.2)
    ]  # fmt: skip
    table = measured([(place, {0: 0.5, 1: 0.6}) for place in places])
    cases = {None: "model.d_model and training.lr differ", "model.d_model": "training.lr differs"}
    for hue, said in cases.items():
        with pytest.raises(UserError, match=f"^{said} at equal data.train_puzzles"):
            gather(table, FitSpec(hue=hue))
    for spec in (FitSpec(where={"training.lr": 0.1}), FitSpec(x="training.lr", where={"model.d_model": 16})):
        assert len(gather(table, spec)) > 1
    assert len(gather(table, FitSpec(hue="label"))) == len(places)


def test_points_of_two_experiments_that_share_a_run_are_one(tables: dict[str, Table]) -> None:
    table = tables["model_size"]
    other = Table(
        table.rows.assign(experiment="other", point=3 - table.rows["point"]), table.curves, table.info
    )
    other.info = {**table.info, "experiment": "other"}
    more = Table(table.rows.assign(run=table.rows["run"] + "x", experiment="more"), table.curves, table.info)
    more.info = {**table.info, "experiment": "more"}
    assert merge([table, other]).rows["point"].nunique() == table.rows["point"].nunique()
    assert merge([table, more]).rows["point"].nunique() == 2 * table.rows["point"].nunique()


def table_with(root: Any, error: Any, points: Any = None, seeds: int = 3) -> Table:
    points = points or [{"data.train_puzzles": n} for n in (30, 100, 300, 1000)]
    return collect(TableSpec.model_validate(experiment(root, "t", points, seeds, error)))


def test_perfect_and_hopeless_points_are_shown_but_not_fitted(tmp_path: Any) -> None:
    errors = {10: 2.0, 30: 0.4, 100: 0.1, 300: 0.003, 1000: 0.0}
    points = [{"data.train_puzzles": n} for n in errors]
    table = table_with(tmp_path, lambda config: errors[config.data.train_puzzles or 0], points)
    group = group_of(table)
    reasons = {item["x"][0]: item["why"] for item in group["exclusions"]}
    assert reasons[10] == "error above 90 %"
    assert "test set resolves" in reasons[1000]
    assert group["points"] == 3
    assert any("half a test puzzle" in note for note in group["notes"])


def test_a_hopeless_evaluation_leaves_out_only_itself(tables: dict[str, Table]) -> None:
    whole = tables["inference"]
    rows = whole.rows.copy()
    fixed = rows["policy"] == "fixed"
    cheapest = rows["flops_per_puzzle"] == rows.loc[fixed, "flops_per_puzzle"].min()
    rows.loc[fixed & cheapest, "error"] = 0.99
    spec = {"x": "flops_per_puzzle", "where": {"policy": "fixed"}}
    group = group_of(replace(whole, rows=rows), **spec)
    assert group["points"] == group_of(whole, **spec)["points"] - 1
    assert {item["x"][0] for item in group["exclusions"]} == {rows.loc[cheapest, "flops_per_puzzle"].iloc[0]}


def test_flat_data_choose_the_constant(tmp_path: Any) -> None:
    group = group_of(table_with(tmp_path, lambda config: 0.3))
    assert group["chosen"] == "constant"
    assert group["forms"]["constant"]["parameters"]["E"] == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("sizes", [(30, 100, 300), (30, 300)])
def test_a_form_with_too_many_parameters_gives_way(tmp_path: Any, sizes: tuple[int, ...]) -> None:
    group = law_of(tmp_path, *sizes, form="power_law_floor")
    assert group["chosen"] == "power_law"
    said = f"a power law with a floor was requested but needs 5 points, there are {len(sizes)}"
    assert said in group["why"]
    assert f"{len(sizes)} points cannot test a law with 2 parameters" in group["doubts"]


def test_one_seed_gives_a_law_without_interval(tmp_path: Any) -> None:
    group = law_of(tmp_path, seeds=1)
    assert group["interval"] is None
    assert "intervals" not in group["forms"][group["chosen"]]


def test_the_best_learning_rate_follows_the_batch(tmp_path: Any) -> None:
    """The optimum lies at 1e-3 (B / 128)^0.5; at the largest batches, which are two, it is outside the grid."""

    def error(config: Any) -> float:
        best = 1e-3 * (config.training.batch_size / 128) ** 0.5
        return 0.1 * (1 + 0.8 * np.log2(config.training.lr / best) ** 2)

    rates, batches = (3e-4, 6e-4, 12e-4, 24e-4), (64, 128, 256, 2048, 2064)
    points = [{"training.lr": rate, "training.batch_size": batch} for rate in rates for batch in batches]
    spec = FitSpec(form="optimum", x="training.lr", second="training.batch_size", bootstrap=200)
    group = fit_table(table_with(tmp_path, error, points), spec)["groups"][0]
    assert [item["edge"] for item in group["optima"]] == [False, False, False, True, True]
    law = group["laws"]["x"]
    low, high = law["interval"]
    assert low - 0.05 < 0.5 < high + 0.05  # one draw of a 95 % interval
    assert law["points"] == 3
    assert law["doubts"] == ["3 optima inside the grid are too few for a power law"]


def test_the_repeated_data_law_is_fitted_over_both_experiments(tables: dict[str, Table]) -> None:
    spec = FitSpec(form="repeated_data", x="data.train_puzzles", second="data.augmentations", bootstrap=100)
    group = fit_table(merge([tables["data_size"], tables["augmentation"]]), spec)["groups"][0]
    low, high = group["forms"]["repeated_data"]["intervals"]["R*"]
    assert low < 15 < high


def test_choosing_a_form() -> None:
    def form(aicc: float | None, enough_points: bool = True) -> dict[str, Any]:
        return {"aicc": aicc, "enough_points": enough_points, "parameters": {}}

    assert choose({"a": form(-5), "b": form(-3)}) == ("a", "lowest AICc")
    name, why = choose({"power_law": form(-5), "power_law_floor": form(-3), "sigmoid": form(-9)})
    assert (name, why) == ("power_law", "lowest AICc of a constant and the power laws")
    assert choose({"a": form(-5, enough_points=False), "b": form(-3)})[0] == "b"


@pytest.mark.parametrize(("value", "rounded"), [(173.0, 200.0), (0.0123, 0.01), (4.1e5, 5e5), (9.0, 10.0)])
def test_round_numbers(value: float, rounded: float) -> None:
    assert round_number(value) == pytest.approx(rounded)


OUT = {"log_error": 0.1, "observed": 0.1, "interval": [0.05, 0.2]}
SOUND = {"parameters": {"A": 1.0, "a": 0.5}, "intervals": {"a": [0.4, 0.6]}, "held_out": OUT}
SOUND |= {"enough_points": True, "at_bound": False, "bound_share": 0.0, "failed_share": 0.0}


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, None),
        ({"enough_points": False}, "6 points cannot test a law with 2 parameters"),
        ({"at_bound": True}, "an exponent reaches the bound of the search"),
        ({"bound_share": 0.1}, "an exponent reaches the bound of the search"),
        ({"intervals": {"a": [-0.1, 0.6]}}, "the interval of an exponent includes 0"),
        ({"intervals": None}, "one seed a point, or equal ones, give no interval"),
        ({"held_out": OUT | {"log_error": 0.5}}, "a constant predicts the largest point better"),
        ({"held_out": OUT | {"observed": 0.3}}, "it fails to predict the largest point"),
    ],
)
def test_doubts_are_what_keeps_a_law_from_being_claimed(changes: dict[str, Any], doubt: str | None) -> None:
    flat = {"held_out": {"log_error": 0.3}}
    found = doubts("power_law", {"power_law": SOUND | changes, "constant": flat}, 6)
    assert found == ([doubt] if doubt else [])
    assert doubts("constant", {"constant": flat}, 6) == []


def test_a_form_in_the_intervals_whose_exponent_has_no_end_is_a_doubt() -> None:
    results = {"power_law": SOUND, "power_law_floor": SOUND | {"bound_share": 0.1}}
    assert doubts("power_law", results, 6) == []
    assert doubts("power_law", results, 6, list(results)) == ["an exponent reaches the bound of the search"]


def test_no_error_above_one_is_predicted() -> None:
    """Errors near 1 with a wide spread; a loss may exceed it."""
    points = [({"data.train_puzzles": n}, {s: 0.55 + 0.1 * s for s in range(4)}) for n in (1, 2, 4, 8, 16)]
    for metric, most in (("error", 1.0), ("cross_entropy", np.inf)):
        ((_, data),) = gather(measured(points, metric), FitSpec(y=metric))
        found = held_out("power_law", data, 0.1, resample(data.log_y, data.group, 200, 0))
        assert found is not None
        assert found["interval"][1] == 1.0 if metric == "error" else 1.0 < found["interval"][1] < most
