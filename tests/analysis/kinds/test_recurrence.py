"""`recurrence`: the worth of a recurrence in parameters, where laws agree on it."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.claims import sentences
from trm.analysis.fits.recurrence import Points, worth
from trm.analysis.fits.recurrence import drawn as with_draws
from trm.analysis.kinds.recurrence import claim
from trm.errors import UserError


def points(phi: float, noise: float = 0.01) -> Points:
    """Three budgets of 4 sizes x 4 recurrences, three seeds, by E + A (N r^phi)^-0.6 + B D^-0.5."""
    rng = np.random.default_rng(0)
    n, r, c = (v.ravel() for v in np.meshgrid([5e3, 1e4, 2e4, 4e4], [2.0, 4, 8, 16], [1e12, 4e12, 1.6e13]))
    rows = c / (6 * n * r) / 100
    error = 0.01 + 60 * (n * r**phi) ** -0.6 + 10 * rows**-0.5
    logs = np.log(np.repeat(error, 3)) + noise * rng.standard_normal(3 * len(n))
    return Points(
        n, r, rows, c, with_draws(logs, np.repeat(np.arange(len(n)), 3), np.tile([0, 1, 2], len(n)))
    )


def test_phi_is_found_by_the_law_that_made_the_errors() -> None:
    own = worth(points(0.5))["E + A M⁻ᵃ + B D⁻ᵇ"]
    assert own.phi == pytest.approx(0.5, abs=0.05)
    assert own.interval[0] <= 0.5 <= own.interval[1]
    assert own.rivals["1"] > 10  # 1 is ruled out
    assert own.held_out["fitted"] < own.held_out["1"]


def test_a_worth_is_claimed_only_where_laws_agree(drawn: Drawn) -> None:
    alike = {
        "one": SimpleNamespace(phi=0.4, interval=(0.3, 0.5)),
        "two": SimpleNamespace(phi=0.5, interval=(0.4, 0.6)),
    }
    assert sentences([claim(alike)]) == "The worth φ of a recurrence is 0.45 [0.30, 0.60] by 2 laws."
    alike["two"] = SimpleNamespace(phi=0.9, interval=(0.8, 1.0))
    apart = "We claim no worth φ of a recurrence: by law it is 0.4 (one) and 0.9 (two)."
    assert sentences([claim(alike)]) == apart
    with pytest.raises(UserError, match="compute has fewer than three sizes or numbers of recurrences"):
        drawn("compute", kind="recurrence")
