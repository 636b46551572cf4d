import pytest

from trm.study.flops import (
    forward_flops,
    inner_width,
    parameter_shapes,
    parameters,
    recursion_stages,
    stack_flops,
    step_flops,
    train_flops,
)
from trm.study.schema import CurriculumStage, ModelConfig, TrainingConfig

MLP = ModelConfig()
ATTENTION = ModelConfig(mixer="attention", position="rope")


@pytest.mark.parametrize(
    ("model", "size", "stack", "step"),
    [(MLP, 5_028_866, 1.2205, 42.72), (ATTENTION, 6_828_034, 1.3608, 47.63)],
)
def test_the_papers_table(model, size, stack, step):
    assert parameters(model, 81, 11) == size
    assert round(stack_flops(model, 81) / 1e9, 4) == stack
    assert round(step_flops(model, 81, 11) / 1e9, 2) == step


def test_evaluation_costs_the_forward_part_only():
    assert round(forward_flops(MLP, 81, 11) / 1e9, 2) == 25.63


def test_inner_width_is_a_multiple_of_256():
    assert [inner_width(width, 4.0) for width in (512, 97, 16)] == [1536, 512, 256]


def test_learned_positions_are_counted():
    shapes = parameter_shapes(MLP.model_copy(update={"position": "learned"}), 81, 11)
    assert shapes["position.weight"] == (97, 512)


def test_a_curriculum_is_stages_of_whole_steps():
    stages = (
        CurriculumStage(until=0.25, h_cycles=1, l_cycles=2),
        CurriculumStage(until=0.5, h_cycles=2, l_cycles=2),
    )
    training = TrainingConfig(steps=10, curriculum=stages)
    assert recursion_stages(MLP, training) == [(3, 1, 2), (5, 2, 2), (10, 3, 6)]
    expected = sum(steps * step_flops(MLP, 81, 11, T, n) for steps, T, n in ((3, 1, 2), (2, 2, 2), (5, 3, 6)))
    assert train_flops(MLP, training, 81, 11) == pytest.approx(768 * expected)


def test_a_stage_to_the_end_leaves_nothing_for_the_model():
    training = TrainingConfig(steps=7, curriculum=(CurriculumStage(until=1.0, h_cycles=1, l_cycles=1),))
    assert recursion_stages(MLP, training) == [(7, 1, 1)]
