"""`restarts`: what a few attempts predict of all of them."""

from math import comb

import numpy as np
import pandas as pd
import pytest

from tests.analysis.conftest import figure
from trm.analysis.drawing import styled
from trm.analysis.fits.restarts import Attempts, any_of, fit_attempts, same_share
from trm.analysis.fits.restarts import drawn as resampled
from trm.analysis.kinds import draw
from trm.analysis.kinds.common import MARKERS
from trm.analysis.tables import Table


def test_four_attempts_predict_eight() -> None:
    """Attempts that are alike: a chance of 0.6 in the mean and a correlation of 1 / (1.2 + 0.8 + 1)."""
    rng = np.random.default_rng(0)
    chance = rng.beta(1.2, 0.8, 4000)
    right = rng.random((8, 4000)) < chance
    four, eight = (np.bincount(right[:k].sum(0), minlength=k + 1) for k in (4, 8))
    fitted = fit_attempts(four)
    assert fitted == pytest.approx((0.6, 1 / 3, 1.0), abs=0.03)
    assert fitted.solved(np.array([8.0]))[0] == pytest.approx(any_of(eight)[-1], abs=0.02)
    assert any_of(eight)[-1] == pytest.approx(right.any(0).mean())
    assert any_of(eight)[-1] + 0.05 < 1 - 0.4**8  # independent attempts would solve more


@pytest.mark.parametrize("counts", [[100, 0, 0], [0, 0, 100], [50, 0, 50]])
def test_counts_without_a_mix_have_a_law_too(counts: list[int]) -> None:
    found = fit_attempts(np.array(counts))
    assert found.rate == pytest.approx(counts[-1] / 100, abs=0.01)
    assert 0 <= found.solved(np.array([4.0]))[0] <= 1


def test_the_first_attempt_has_a_chance_of_its_own() -> None:
    """Without noise it solves sqrt(q), the others q: their rate and correlation are found, not its."""
    rng = np.random.default_rng(1)
    chance = rng.beta(1.2, 0.8, 20000)
    right = rng.random((8, 20000)) < np.vstack([chance**0.5, *[chance] * 7])
    first, four, eight = (np.bincount(right[:k].sum(0), minlength=k + 1) for k in (1, 4, 8))
    found = fit_attempts(four, first)
    assert found == pytest.approx((0.6, 1 / 3, 0.5), abs=0.03)
    assert found.solved(np.array([8.0]))[0] == pytest.approx(right[:8].any(0).mean(), abs=0.01)
    assert fit_attempts(four).rate > found.rate + 0.03  # pooled, the first one flatters the others
    assert eight.sum() == 20000


def test_whole_seeds_are_resampled() -> None:
    """Two seeds that differ: the spread between them is in the draws, that of 10,000 puzzles is not."""
    low, high = np.array([6000.0, 2000, 2000]), np.array([2000.0, 2000, 6000])
    apart = resampled([low, high], [low[[0, 2]], high[[0, 2]]], 20)
    alike = resampled([low + high] * 2, [(low + high)[[0, 2]]] * 2, 20)
    assert np.std([item.rate for item in apart]) > 5 * np.std([item.rate for item in alike])


def test_the_rival_solves_the_same_share_of_the_rest_at_every_doubling() -> None:
    """One attempt solves 1/2 and two 3/4: half of the rest; so four solve 7/8 and eight 15/16."""
    assert same_share(np.array([1.0, 2, 1]), 8) == pytest.approx(15 / 16)
    assert Attempts(0.5, 1e-5).solved(np.array([3.0]))[0] == pytest.approx(7 / 8, abs=1e-3)


@pytest.mark.parametrize("attempts", range(2, 9))
def test_the_rival_takes_even_and_odd_numbers_of_attempts(attempts: int) -> None:
    """Where every doubling solves a fifth of the rest, by inclusion and exclusion over those that fail."""

    def unsolved(k: int) -> float:
        return 0.6 * 0.8 ** np.log2(k) if k else 1.0

    counts = [
        comb(attempts, j) * sum((-1) ** i * comb(j, i) * unsolved(attempts - j + i) for i in range(j + 1))
        for j in range(attempts + 1)
    ]
    assert 1 - same_share(np.array(counts), 32) == pytest.approx(0.6 * 0.8**5)


def test_many_policies_have_rows_of_their_own_and_a_legend(tables: dict[str, Table]) -> None:
    table = tables["inference"]
    parts = [table.rows.assign(label=f"noise {i}", run=table.rows["run"] + str(i)) for i in range(6)]
    rows = pd.concat(parts, ignore_index=True)
    with styled():
        drawing = draw(figure(kind="restarts"), [Table(rows, table.curves, table.info)], [])
    left, right = drawing.canvas.axes
    places = sorted(line.get_ydata()[0] for line in right.lines if line.get_marker() in MARKERS)
    assert len(places) == len(set(places)) == 6 * len(right.get_yticks())
    assert [round(place) for place in places] == sorted(
        6 * list(right.get_yticks())
    )  # nearest to their own name
    (found,) = drawing.canvas.legends
    assert [text.get_text() for text in found.get_texts()] == [f"noise {i}" for i in range(6)]
    assert "noise 0" not in {text.get_text() for text in left.texts}
