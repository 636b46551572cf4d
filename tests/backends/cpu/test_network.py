"""The network of compiled passes against autograd, and what happens where it cannot run."""

import math
import statistics

import pytest
import torch

from tests.backends.supervision import SEQ, VOCAB, supervision_step
from trm.backends import registry
from trm.backends.cpu.network import CompiledRounds
from trm.model.inference import InferenceNetwork
from trm.model.parameters import architecture, initial_weights
from trm.model.plain import PlainNetwork, PlainRounds
from trm.study.schema import ModelConfig

VARIANTS = {
    "mlp": {},
    "attention": {"mixer": "attention"},
    "rope": {"mixer": "attention", "position": "rope"},
    "learned": {"position": "learned", "layers": 1},
    "deep": {"h_cycles": 1, "l_cycles": 4, "layers": 3},
    "narrow": {"multiple": 8},
}
FUSED = registry.load_implementation("fused").network
SMALL = {"d_model": 16, "heads": 2, "puzzle_tokens": 2, "h_cycles": 2, "l_cycles": 2}


def relative(mine, its):
    return ((mine.double() - its.double()).norm() / its.double().norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_autograd(variant):
    """Outputs, every weight's gradient and the puzzle's, in float32 against float64."""
    model = ModelConfig(**(SMALL | VARIANTS[variant]))
    mine = supervision_step(FUSED, model, torch.float32)
    exact = supervision_step(PlainNetwork, model, torch.float64)
    for a, b in zip(mine[0], exact[0]):
        assert relative(a, b) < 2e-5
    for name, gradient in exact[1].items():
        assert relative(mine[1][name], gradient) < 5e-5, name
    assert relative(mine[2], exact[2]) < 5e-5


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_bfloat16_is_as_close_to_the_truth_as_autograd(mixer):
    """Mean over weights and seeds of the logarithm of each gradient's relative error, against autograd's."""
    model = ModelConfig(
        **(SMALL | {"d_model": 64, "puzzle_tokens": 1, "h_cycles": 1, "l_cycles": 1, "mixer": mixer})
    )
    excess = []
    for seed in range(4):
        exact = supervision_step(PlainNetwork, model, torch.float64, seed=seed)[1]
        mine, its = (
            supervision_step(kind, model, torch.bfloat16, seed=seed)[1] for kind in (FUSED, PlainNetwork)
        )
        for name in exact.keys() - {"halt.bias"}:
            excess.append(math.log(relative(mine[name], exact[name]) / relative(its[name], exact[name])))
    assert math.exp(statistics.mean(excess)) < 1.1


def rounds(dtype):
    model = ModelConfig(**SMALL)
    weights = {name: w.to(dtype) for name, w in initial_weights(model, SEQ, VOCAB, 0).items()}
    return registry.load_implementation("fused").rounds(weights, architecture(model, dtype))


def test_taken_where_it_can_run(monkeypatch):
    monkeypatch.delenv("TRM_CPU_KERNELS", raising=False)
    assert isinstance(rounds(torch.bfloat16), CompiledRounds)
    assert isinstance(rounds(torch.float32), CompiledRounds)
    for other in (torch.float64, torch.float16):
        assert type(rounds(other)) is PlainRounds
    monkeypatch.setenv("TRM_CPU_KERNELS", "0")
    assert type(rounds(torch.float32)) is PlainRounds
    monkeypatch.delenv("TRM_CPU_KERNELS")
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    assert type(rounds(torch.float32)) is PlainRounds


def answers(model, weights, threads=1):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        arch, states = architecture(model, torch.float32), (torch.ones(64), -torch.ones(64))
        net = InferenceNetwork(
            weights, *states, torch.ones(1, 64), arch, 2, 2, registry.load_implementation("fused")
        )
        x = net.embed(torch.ones(64, SEQ, dtype=torch.uint8), torch.zeros(64, dtype=torch.int32))
        return net.step(*net.start(64, len(x)), x)[2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_the_way_without_it_gives_the_same(monkeypatch, mixer):
    model = ModelConfig(**(SMALL | {"d_model": 64, "mixer": mixer}))
    weights = initial_weights(model, SEQ, VOCAB, 0)
    monkeypatch.delenv("TRM_CPU_KERNELS", raising=False)
    compiled = answers(model, weights)
    torch.testing.assert_close(answers(model, weights, threads=2), compiled, rtol=1e-4, atol=1e-4)
    monkeypatch.setenv("TRM_CPU_KERNELS", "0")
    torch.testing.assert_close(answers(model, weights), compiled, rtol=1e-4, atol=1e-4)
