import math

import pytest
import torch

from trm.training.optim.loss_scale import GROWTH_INTERVAL, INITIAL, adjusted, initial_scale
from trm.training.optim.schedule import lr_factor


def factor(step, **options):
    return lr_factor(
        torch.tensor(float(step)), **({"warmup_steps": 10, "steps": 110, "min_ratio": 1.0} | options)
    ).item()


def test_warm_up_is_linear_and_reaches_the_peak():
    assert [factor(s) for s in (1, 5, 10, 11, 110)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    assert factor(1, warmup_steps=0) == 1


def test_cosine_falls_to_the_minimum():
    assert factor(60, min_ratio=0.2) == pytest.approx(0.2 + 0.8 * 0.5)
    assert factor(110, min_ratio=0.2) == pytest.approx(0.2)
    assert factor(35, min_ratio=0.0) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_loss_scale_halves_on_overflow_and_grows_after_enough_good_steps():
    scale = initial_scale(torch.device("cpu"))
    scale = adjusted(scale, torch.tensor(False))
    assert scale.tolist() == [INITIAL / 2, 0]
    for _ in range(GROWTH_INTERVAL):
        scale = adjusted(scale, torch.tensor(True))
    assert scale.tolist() == [INITIAL, 0]
