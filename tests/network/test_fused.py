"""The hand-written backward against autograd."""

import pytest
import torch

from tests.network.supervision import SEQ, VOCAB, supervision_step
from trm.network.eager.fused import Buffers, FusedNetwork, normalise, normalise_backward
from trm.network.eager.plain import PlainNetwork
from trm.network.inference import InferenceNetwork
from trm.network.parameters import architecture, initial_weights
from trm.study.schema import ModelConfig

VARIANTS = {
    "mlp": {},
    "attention": {"mixer": "attention"},
    "rope": {"mixer": "attention", "position": "rope"},
    "learned": {"position": "learned", "layers": 1},
    "deep": {"h_cycles": 1, "l_cycles": 4, "layers": 3},
    "narrow": {"multiple": 8},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_autograd_in_float64(variant):
    model = ModelConfig(
        **({"d_model": 8, "heads": 2, "puzzle_tokens": 2, "h_cycles": 2, "l_cycles": 2} | VARIANTS[variant])
    )
    fused, plain = (
        supervision_step(FusedNetwork, model, torch.float64),
        supervision_step(PlainNetwork, model, torch.float64),
    )
    for mine, its in zip(fused[0], plain[0]):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)
    for name, gradient in plain[1].items():
        torch.testing.assert_close(
            fused[1][name], gradient, rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )
    torch.testing.assert_close(fused[2], plain[2], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_bfloat16_is_as_close_to_the_truth_as_autograd(mixer, weights):
    """Relative error of each gradient against float64 at the same (rounded) weights."""
    model = ModelConfig(d_model=32, heads=2, puzzle_tokens=1, h_cycles=2, l_cycles=2, mixer=mixer)
    exact = supervision_step(PlainNetwork, model, torch.float64)[1]
    errors = []
    for kind in (FusedNetwork, PlainNetwork):
        found = supervision_step(kind, model, torch.bfloat16, weights)[1]
        errors.append(
            [((found[n] - exact[n]).norm() / exact[n].norm()).item() for n in exact if n != "halt.bias"]
        )
    assert all(mine < 1.25 * its + 2e-3 for mine, its in zip(*errors))


@pytest.mark.parametrize("dim", [0, -1])
def test_norm_and_its_backward(dim):
    x = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def by_hand(x):
        return x / (x.square().mean(dim, keepdim=True) + 1e-5).sqrt()

    y, scale = normalise(x, dim, Buffers(), ())
    torch.testing.assert_close(y, by_hand(x))
    grad = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (expected,) = torch.autograd.functional.vjp(by_hand, x, grad)[1:]
    torch.testing.assert_close(
        normalise_backward(grad, y, scale, dim, Buffers()), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("variant", ["mlp", "rope"])
def test_inference_equals_the_plain_one(variant):
    model = ModelConfig(**({"d_model": 8, "heads": 2, "puzzle_tokens": 1} | VARIANTS[variant]))
    weights, arch = initial_weights(model, SEQ, VOCAB, 0), architecture(model, torch.float32)
    states = torch.ones(8), -torch.ones(8)
    inputs = torch.ones(3, SEQ, dtype=torch.uint8)
    ids = torch.zeros(3, dtype=torch.int32)
    answers = []
    for kind in ("plain", "fused"):
        net = InferenceNetwork(weights, *states, torch.ones(1, 8), arch, 2, 2, kind)
        x = net.embed(inputs, ids)
        z_H, z_L = net.start(3, len(x))
        for _ in range(2):
            z_H, z_L, logits, halt = net.step(z_H, z_L, x)
        answers.append((logits, halt))
    for mine, its in zip(*answers):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
