"""`exchange`: one long pass against new attempts."""

import pandas as pd
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.exchange import curves, worth
from trm.errors import UserError


def rows(deep: list[float], counts: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Attempts of 4 steps and passes of 4, 8, ... steps, one row a seed."""
    wide = pd.DataFrame({"eval_steps": 4, "seed": range(len(counts)), "restarts": 4, "solved_counts": counts})
    seeds = [(seed, 4 * 2**i, share) for seed in range(len(counts)) for i, share in enumerate(deep)]
    return wide, pd.DataFrame(seeds, columns=["seed", "eval_steps", "exact_accuracy"])


def test_a_pass_is_worth_the_attempts_that_solve_as_much() -> None:
    """Independent attempts of chance 1/2: 1, 2 and 4 of them solve 1/2, 3/4 and 15/16."""
    wide, passes = rows([0.5, 0.6, 0.75], ["[1,4,6,4,1]"] * 3)
    deep, broad = curves(wide, passes)
    assert deep.steps.tolist() == broad.steps.tolist() == [4, 8, 16]
    assert broad.shares[0] == pytest.approx([0.5, 0.75, 0.9375])
    assert broad.hazard[0] == pytest.approx([0.5, 0.75])
    assert deep.hazard[0] == pytest.approx([0.2, 0.375])
    assert worth(deep, broad).value == pytest.approx(2.0)


def test_it_says_what_a_long_pass_is_worth(drawn: Drawn) -> None:
    drawing = drawn("inference", kind="exchange")
    assert drawing.sentence.startswith("The worth of one long pass is ")
    assert drawing.sentence.endswith("attempts. That pass has 16 steps and costs as much as 2 attempts.")
    with pytest.raises(UserError, match=r"set evaluation\.unroll and evaluation\.restarts"):
        curves(*rows([0.5], ["[1,4,6,4,1]"]))
