"""`batch`: the noise scale."""

import pandas as pd
import pytest

from trm.analysis.kinds.batch import noise_scale


def test_the_noise_scale_is_the_one_that_training_measured() -> None:
    rows, curves = pd.DataFrame({"run": ["a", "b"]}), pd.DataFrame({"run": [*"aaaabbbbc"]})
    assert noise_scale(rows, curves) is None
    logged = curves.assign(**{"train/noise_scale": [9.0, 9, 100, 100, 9, 9, 400, 400, 7]})
    assert noise_scale(rows, logged) == pytest.approx(200.0)
