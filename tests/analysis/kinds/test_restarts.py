"""`restarts`: what half of the attempts predict of all of them."""

import numpy as np
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.fits.restarts import any_of, fit_attempts
from trm.errors import UserError


def test_four_attempts_predict_eight() -> None:
    """Attempts that are alike: a chance of 0.6 in the mean and a correlation of 1 / (1.2 + 0.8 + 1)."""
    rng = np.random.default_rng(0)
    chance = rng.beta(1.2, 0.8, 4000)
    right = rng.random((8, 4000)) < chance
    four, eight = (np.bincount(right[:k].sum(0), minlength=k + 1) for k in (4, 8))
    fitted = fit_attempts(four)
    assert fitted == pytest.approx((0.6, 1 / 3), abs=0.03)
    assert fitted.solved(np.array([8.0]))[0] == pytest.approx(any_of(eight)[-1], abs=0.02)
    assert any_of(eight)[-1] == pytest.approx(right.any(0).mean())
    assert any_of(eight)[-1] + 0.05 < 1 - 0.4**8  # independent attempts would solve more


@pytest.mark.parametrize("counts", [[100, 0, 0], [0, 0, 100], [50, 0, 50]])
def test_counts_without_a_mix_have_a_law_too(counts: list[int]) -> None:
    found = fit_attempts(np.array(counts))
    assert found.rate == pytest.approx(counts[-1] / 100, abs=0.01)
    assert 0 <= found.solved(np.array([4.0]))[0] <= 1


def test_it_says_what_was_predicted_and_how_alike_attempts_are(drawn: Drawn) -> None:
    drawing = drawn("inference", kind="restarts")
    assert "2 attempts predict for 4 a share of puzzles solved by at least one attempt" in drawing.sentence
    assert "inside the interval. The chance of one attempt is" in drawing.sentence
    assert "The correlation between attempts is 0.34 [0." in drawing.sentence
    with pytest.raises(UserError, match=r"set evaluation\.restarts"):
        drawn("mixer", kind="restarts")
