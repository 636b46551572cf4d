"""What a power law needs before it is called one. The full study is benchmarks/claims.py."""

from typing import Any

import numpy as np
import pytest

from benchmarks.claims import FALSE, TRUE, claimed, share, studied
from trm.analysis.fits.bootstrap import resample, student_factor, together
from trm.analysis.fits.compare import ended
from trm.analysis.fits.data import Data, envelope
from trm.analysis.fits.optimum import budgets
from trm.analysis.fits.run import fit_data
from trm.analysis.specs import FitSpec
from trm.analysis.stats import frontier


@pytest.mark.parametrize(
    "name", ["sigmoid at 15, k = 1", "exponential, s = 100", "steps 54, 18, 9 %", "line in log x"]
)
def test_curves_that_are_no_power_law_are_not_claimed(name: str) -> None:
    assert share(FALSE[name], 3, 0.09, studies=10, refits=40) <= 0.1


def test_power_laws_over_two_decades_are_claimed() -> None:
    names = ("power law, a = 0.5", "power law, a = 0.8")
    shares = [share(TRUE[name][0], 3, 0.09, studies=8, refits=40) for name in names]
    assert np.mean(shares) >= 0.7


def data_of(x: Any, y: Any, group: Any = None, runs: list[str] | None = None) -> Data:
    """Points as a fit takes them; each of a run of its own unless said."""
    count = len(y)
    group = np.arange(count) if group is None else group
    x, y = np.array([x], float), np.asarray(y, float)
    return Data(x, y, group, runs or [chr(97 + i) for i in range(count)], np.zeros(count))


def test_a_plateau_and_too_few_points_are_said() -> None:
    fit = studied(FALSE["law that ends at 250"], 3, 0.09, 0, 40)
    assert not claimed(fit)
    assert "the last two points are equal within the noise" in fit["doubts"]
    few = data_of([1.0, 2, 4, 8, 16], [0.8, 0.4, 0.2, 0.1, 0.05])
    doubts = fit_data(few, FitSpec(bootstrap=20))["doubts"]
    assert "5 points do not rule out a sigmoid in log x" in doubts


def test_a_floor_that_fits_as_well_widens_the_ribbon() -> None:
    curve, *_ = TRUE["power law, a = 0.5"]
    fit = studied(curve, 3, 0.12, 4, 60)
    ribbon = fit["forms"][fit["chosen"]]["curve"]
    assert {"power_law", "power_law_floor"} <= set(fit["spanned"])
    assert ribbon["high"][-1] == max(fit["forms"][name]["curve"]["high"][-1] for name in fit["spanned"])
    assert ribbon["high"][-1] > 1.5 * ribbon["y"][-1]


def repeated() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Three models at four places each; a model is good or bad everywhere."""
    level = np.repeat([0.3, 0.0, -0.3], 4)
    log_y = np.tile([-1.0, -1.5, -2.0, -2.5], 3) + level
    return log_y, np.tile(np.arange(4), 3), list(np.repeat(["a", "b", "c"], 4))


def test_a_run_measured_at_several_points_is_resampled_as_a_whole() -> None:
    log_y, group, runs = repeated()
    whole = together(log_y, group, np.array(runs), 200, 0)
    changes = whole.reshape(200, 3, 4) - np.tile([-1.0, -1.5, -2.0, -2.5], 3).reshape(3, 4)
    assert np.ptp(changes, axis=2).max() < 1e-12
    apart = resample(log_y, group, 200, 0)
    mean = [sample.reshape(200, 3, 4).mean(axis=(1, 2)).std() for sample in (whole, apart)]
    assert mean[0] > 1.5 * mean[1]  # independent draws would average a model's level away


def test_a_point_with_fewer_seeds_is_less_certain_and_none_stands_still() -> None:
    """Three points: six seeds, two of them, one of them."""
    group, seeds = np.repeat([0, 1, 2], [6, 2, 1]), np.array([*range(6), 0, 1, 0])
    log_y = 0.1 * np.array([1.0, -1, 1, -1, 1, -1, 1, -1, 1])
    spread = together(log_y, group, seeds, 4000, 0).std(axis=0)
    scaled = 0.1 * np.sqrt([6 / 5, 2])
    assert spread[:8] == pytest.approx(
        np.repeat([scaled[0] * student_factor(6, 1), scaled[1] * student_factor(2, 1)], [6, 2]), rel=0.05
    )
    pooled = np.sqrt(8 * 0.1**2 / 6)
    assert spread[8] == pytest.approx(pooled * student_factor(9, 3), rel=0.05)


def test_runs_at_both_of_the_last_points_are_compared_in_pairs() -> None:
    log_y, group, runs = repeated()
    last = group == 3
    lower = log_y + 0.01 * np.arange(12) * last
    flat = log_y + 0.5 * last + 0.1 * last * np.repeat([1, -1, 0.5], 4)
    assert not ended(data_of(group + 1.0, np.exp(lower), group, runs))
    assert ended(data_of(group + 1.0, np.exp(flat), group, runs))
    for change, ends in ((0.0, True), (-0.5, False)):  # the same in every run
        same = np.where(last, np.roll(log_y, 1) + change, log_y)
        assert ended(data_of(group + 1.0, np.exp(same), group, runs)) is ends


def test_runs_of_one_budget_are_one_point_of_the_envelope() -> None:
    """They end at whole steps, so the worse one may be the cheaper one."""
    data = data_of([19.95, 20.0, 199, 200, 1998, 2000], [0.9, 0.8, 0.4, 0.3, 0.1, 0.09])
    assert envelope(data).runs == ["b", "d", "f"]


def test_costs_are_equal_to_the_least_of_them_and_not_along_a_chain() -> None:
    cost = 1.04 ** np.arange(60)
    assert len(frontier(cost, cost)) == 30
    assert len(np.unique(budgets(1.09 ** np.arange(10)))) == 5


def test_a_curve_that_rises_is_no_law_and_equal_seeds_give_no_interval() -> None:
    x = np.repeat(2.0 ** np.arange(8), 3)
    fit = fit_data(data_of(x, x**0.5, np.repeat(np.arange(8), 3)), FitSpec(form="power_law", bootstrap=20))
    assert fit["doubts"][-1] == "the other curves that it is compared with cannot rise"
    assert fit["interval"] is None
    assert fit["notes"] == ["equal seeds at every point: no interval"]


def test_each_draw_chooses_its_own_envelope() -> None:
    """Two sizes that are as good as one another: which is on the envelope is a matter of chance."""
    rng = np.random.default_rng(0)
    cost = np.repeat([1.0, 1.1, 4, 4.4, 16, 17.6, 64, 70], 3)
    error = 0.5 * np.repeat([1.0, 1, 4, 4, 16, 16, 64, 64], 3) ** -0.5 * np.exp(0.1 * rng.standard_normal(24))
    data = data_of(cost, error, np.repeat(np.arange(8), 3))
    kept = envelope(data)
    assert kept.candidates is data
    fixed = Data(kept.x, kept.y, kept.group, kept.runs, kept.tested)
    spec = FitSpec(form="power_law", bootstrap=300)
    one, other = (fit_data(item, spec)["forms"]["power_law"]["intervals"]["A"] for item in (kept, fixed))
    assert one != other
