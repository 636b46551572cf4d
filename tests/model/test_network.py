"""The network against an independent implementation of the same specification."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.model.equations import EagerTRM
from trm.model import definition
from trm.model.parameters import architecture, initial_states, initial_weights
from trm.study.schema import ModelConfig

SEQ, VOCAB = 16, 6
VARIANTS = {
    "mlp": {},
    "learned": {"position": "learned"},
    "attention": {"mixer": "attention"},
    "rope": {"mixer": "attention", "position": "rope"},
    "no puzzle tokens": {"puzzle_tokens": 0},
    "narrow": {"multiple": 8},
    "three layers": {"layers": 3, "h_cycles": 1, "l_cycles": 1, "expansion": 12.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_equal_the_independent_ones(variant):
    model = ModelConfig(
        **({"d_model": 16, "heads": 2, "puzzle_tokens": 3, "h_cycles": 2, "l_cycles": 2} | VARIANTS[variant])
    )
    weights = {k: v.double() + 0.01 for k, v in initial_weights(model, SEQ, VOCAB, 0).items()}
    for tensor in weights.values():
        tensor.requires_grad_()
    generator, rows = torch.Generator().manual_seed(0), 3
    shape = 2, SEQ + model.puzzle_tokens, rows, model.d_model
    z_H, z_L = torch.randn(shape, dtype=torch.float64, generator=generator)
    cells = torch.randint(0, VOCAB, (rows, SEQ), dtype=torch.uint8, generator=generator)
    puzzle = torch.randn(rows, model.d_model, generator=generator)
    ours = definition.supervision_step(
        z_H, z_L, cells, puzzle, weights, architecture(model, torch.float64), model.h_cycles, model.l_cycles
    )
    other = EagerTRM(model, SEQ, VOCAB, 1, torch.float64).double()
    other.load_ours(weights, initial_states(model, 0, torch.float64))
    theirs = other(z_H.transpose(0, 1), z_L.transpose(0, 1), cells, puzzle)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if variant == "rope" else {}  # its tables are float32
    for mine, its in zip(ours[:3], theirs[:3]):
        torch.testing.assert_close(mine.transpose(0, 1), its, **tolerance)
    torch.testing.assert_close(ours[3], theirs[3].double(), rtol=1e-5, atol=1e-5)

    for outputs in (ours, theirs):
        logits = outputs[2] if outputs is theirs else outputs[2].transpose(0, 1)
        (logits.square().mean() + outputs[3].double().square().mean()).backward()
    names = dict(other.named_parameters())
    for name, tensor in weights.items():
        expected = names[name if name in names else f"{name}.weight"].grad
        torch.testing.assert_close(
            tensor.grad, expected, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


class Products(TorchDispatchMode):
    """Records the operands and results of all matrix products."""

    def __init__(self):
        super().__init__()
        self.matrices = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.mm.default:
            self.matrices += [*args, result]
        return result


def test_rows_of_token_products_are_aligned_whatever_the_number_of_tokens():
    """A GPU loads bfloat16 matrices fast if their rows begin at multiples of 16 bytes: 8 elements."""
    x, gate_up, down = (
        torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
        for shape in [(97, 2, 16), (48, 97), (97, 24)]
    )
    with Products() as seen:
        mixed = definition.swiglu_tokens(x, gate_up, down)
        mixed.backward(torch.ones_like(mixed))
    assert len(seen.matrices) == 6 * 3
    assert all(min(matrix.stride()) == 1 and max(matrix.stride()) % 8 == 0 for matrix in seen.matrices)
