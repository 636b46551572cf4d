import pytest
import torch

from tests.model import equations
from trm.model.losses import expected_further_steps, judge, log_stablemax


def test_log_stablemax_equals_the_published_form():
    logits = torch.randn(64, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 8
    expected = equations.log_stablemax(logits)
    torch.testing.assert_close(log_stablemax(logits), expected)
    torch.testing.assert_close(log_stablemax(logits.float()), expected.float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [1.0, 0.0, -0.0, 1.0 - 2**-24])
def test_gradient_is_finite_and_right_where_the_published_form_breaks(value):
    logits = torch.tensor([[value, 0.5, -2.0]], requires_grad=True)
    log_stablemax(logits)[0, 0].backward()
    wide = torch.tensor([[value, 0.5, -2.0]], dtype=torch.float64, requires_grad=True)
    equations.log_stablemax(wide)[0, 0].backward()
    torch.testing.assert_close(logits.grad, wide.grad.float(), atol=1e-6, rtol=1e-5)


def test_judge_counts_valid_cells_only():
    # three cells, two rows, four symbols; symbol 0 is no label; the second row has none
    labels = torch.tensor([[1, 2, 0], [0, 0, 0]], dtype=torch.uint8)
    logits = torch.full((3, 2, 4), -1.0)
    logits[0, :, 1] = logits[1, :, 3] = logits[2, :, 2] = 5.0
    answer = judge(logits, labels, ignore=0)
    assert answer.accuracy.tolist() == [0.5, 0.0]
    assert answer.exact.tolist() == [0.0, 1.0]
    assert answer.valid.tolist() == [1.0, 0.0]
    expected = -(log_stablemax(logits[0, 0])[1] + log_stablemax(logits[1, 0])[2]) / 2
    assert answer.cross_entropy[0] == pytest.approx(expected.item())
    assert answer.cross_entropy[1] == 0
    assert judge(logits, labels, ignore=-1).valid.tolist() == [1.0, 1.0]  # no label is ignored


def test_expected_further_steps_by_simulation():
    halt, steps = torch.tensor([0.3, -1.0, 4.0, 0.3]), torch.tensor([1, 5, 2, 8], dtype=torch.int32)
    p = torch.sigmoid(halt)
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(200_000, 8, 4, generator=generator)
    # a further step is taken while every coin so far said "go on" and fewer than 8 steps are done
    going = (draws >= p).cumprod(1)
    allowed = torch.arange(1, 9)[:, None] <= 8 - steps
    simulated = (going * allowed).sum(1).float().mean(0)
    torch.testing.assert_close(expected_further_steps(halt, steps, 8), simulated, atol=0.02, rtol=0)


def test_expected_further_steps_fall_with_the_halt_logit():
    halt = torch.tensor([0.0, -30.0, 30.0], requires_grad=True)
    expected_further_steps(halt, torch.ones(3, dtype=torch.int32), 16).sum().backward()
    assert halt.grad[0] < 0
    assert torch.isfinite(halt.grad).all()
