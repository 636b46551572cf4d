import pytest
from pydantic import ValidationError

from trm.study.flops import (
    forward_flops,
    inner_width,
    parameter_shapes,
    parameters,
    stack_flops,
    step_flops,
    train_flops,
)
from trm.study.schema import ModelConfig, TrainingConfig
from trm.study.stages import recursion_stages

MLP = ModelConfig()
ATTENTION = ModelConfig(mixer="attention", position="rope")


@pytest.mark.parametrize(
    ("model", "size", "stack", "step", "forward"),
    [(MLP, 5_028_866, 1.2205, 42.72, 25.63), (ATTENTION, 6_828_034, 1.3608, 47.63, 28.58)],
)
def test_the_papers_table(model, size, stack, step, forward):
    assert parameters(model, 81, 11) == size
    assert round(stack_flops(model, 81) / 1e9, 4) == stack
    assert round(step_flops(model, 81, 11) / 1e9, 2) == step
    assert round(forward_flops(model, 81, 11) / 1e9, 2) == forward  # of an evaluation


def test_the_inner_width_is_a_multiple():
    assert [inner_width(MLP, width) for width in (512, 97, 16)] == [1536, 512, 256]
    narrow = ModelConfig(multiple=32)
    assert [inner_width(narrow, width) for width in (512, 97, 32, 16)] == [1376, 288, 96, 64]
    shapes = parameter_shapes(ModelConfig(d_model=32, heads=4, puzzle_tokens=1, multiple=32), 36, 8)
    assert shapes["blocks.0.channel_mlp.down"] == (32, 96)
    assert shapes["blocks.0.token_mlp.gate_up"] == (2 * 128, 37)


@pytest.mark.parametrize("multiple", [0, 12, 2048])
def test_a_multiple_that_no_network_can_take_is_refused(multiple):
    with pytest.raises(ValidationError, match="multiple"):
        ModelConfig(multiple=multiple)


def curriculum(steps, *stages):
    """Training with stages (until, T, n, Nsup)."""
    keys = ("until", "h_cycles", "l_cycles", "halt_max_steps")
    return TrainingConfig(steps=steps, curriculum=[dict(zip(keys, stage)) for stage in stages])


def test_a_curriculum_is_stages_of_whole_steps():
    training = curriculum(10, (0.25, 1, 2), (0.5, 2, 2, 4))
    assert recursion_stages(MLP, training) == [(3, (1, 2, 16)), (5, (2, 2, 4)), (10, (3, 6, 16))]
    expected = sum(steps * step_flops(MLP, 81, 11, T, n) for steps, T, n in ((3, 1, 2), (2, 2, 2), (5, 3, 6)))
    assert train_flops(MLP, training, 81, 11) == pytest.approx(768 * expected)
    assert recursion_stages(MLP, curriculum(7, (1.0, 1, 1))) == [(7, (1, 1, 16))]  # a stage to the end
