"""The checks that run on a GPU, run here through the interpreter at a small size."""

import torch

from benchmarks import gpu_checks
from trm.backends.cuda.checks import Check, Shapes
from trm.study.schema import ModelConfig

SMALL = Shapes(batch=1, length=9, width=32, heads=1, inner=32, token_inner=64)


def test_every_kernel_is_checked(monkeypatch):
    every = gpu_checks.candidates
    monkeypatch.setattr(gpu_checks, "candidates", lambda *arguments: every(*arguments)[:1])
    checks = list(gpu_checks.kernels(SMALL, torch.float32, torch.device("cpu")))
    assert [check for check in checks if not check.passed] == []
    elementwise, channels, tokens, attention = 5, 3, 1 + 4, 2 * 2
    assert len(checks) == elementwise + channels + tokens + attention


def test_the_whole_network_is_checked():
    model = ModelConfig(d_model=32, heads=1, layers=1, h_cycles=1, l_cycles=1, expansion=1.0, puzzle_tokens=1)
    checks = list(gpu_checks.whole_network(model, 1, torch.device("cpu")))
    assert len(checks) > 6
    # the interpreter rounds to bfloat16 by cutting bits off: errors up to three times a GPU's
    assert all(check.error < 3 * check.limit for check in checks)


def test_no_number_does_not_pass():
    assert not Check("x", float("nan"), 1.0).passed
