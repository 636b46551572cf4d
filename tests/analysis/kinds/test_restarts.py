"""`restarts`: what half of the attempts predict of all of them, and what one pass is worth."""

import numpy as np
import pandas as pd
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.fits.restarts import any_of, fit_attempts
from trm.analysis.kinds.restarts import law_of
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


def test_a_pass_is_worth_the_attempts_that_solve_as_much() -> None:
    """Independent attempts of chance 1/2: 1, 2 and 4 of them solve 1/2, 3/4 and 15/16; the pass 1/2, 3/5 and 3/4."""
    counts, shares = {2: "[1,2,1]", 4: "[1,4,6,4,1]"}, {4: 0.5, 8: 0.6, 16: 0.75}
    wide = [{"seed": 0, "eval_steps": 4, "restarts": k, "solved_counts": text} for k, text in counts.items()]
    deep = [{"seed": 0, "eval_steps": at, "exact_accuracy": share} for at, share in shares.items()]
    law = law_of(pd.DataFrame(wide), pd.DataFrame(deep))
    assert [item.value for item in law.wide.hazard] == pytest.approx([0.5, 0.75])
    assert [item.value for item in law.deep.hazard] == pytest.approx([0.2, 0.375])
    assert law.worth.value == pytest.approx(2.0)


def test_it_says_what_was_predicted_and_how_alike_attempts_are(drawn: Drawn) -> None:
    drawing = drawn("inference", kind="restarts")
    assert "2 attempts predict for 4 a share of puzzles solved by at least one attempt" in drawing.sentence
    assert "inside the interval. The chance of one attempt is" in drawing.sentence
    assert "The correlation between attempts is 0.34 [0." in drawing.sentence
    assert drawing.sentence.endswith("The longest pass has 16 steps and costs as much as 2 attempts.")
    with pytest.raises(UserError, match=r"set evaluation\.restarts"):
        drawn("mixer", kind="restarts")
