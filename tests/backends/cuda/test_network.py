"""The network made of kernels against the plain one: losses, gradients, several steps of training, inference."""

import pytest
import torch

from tests.backends.cuda.networks import SMALL, one_step, relative
from tests.training.conftest import config, dataset_folder, trainer  # noqa: F401 (a fixture)
from trm.backends.cpu.device import CpuBackend
from trm.backends.cuda.network import TritonNetwork
from trm.backends.registry import load_implementation
from trm.model.inference import InferenceNetwork
from trm.model.parameters import architecture, initial_weights
from trm.model.plain import PlainNetwork
from trm.study.schema import ModelConfig

VARIANTS = {
    "mlp": {},
    "attention": {"mixer": "attention"},
    "rope": {"mixer": "attention", "position": "rope"},
    "learned": {"position": "learned", "layers": 1},
    "deep": {"h_cycles": 1, "l_cycles": 2, "layers": 3},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_autograd_in_float64(variant):
    model = ModelConfig(**(SMALL | VARIANTS[variant]))
    found, plain = (one_step(kind, model, torch.float64) for kind in (TritonNetwork, PlainNetwork))
    for mine, its in zip(found[0], plain[0]):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)
    for name, gradient in plain[1].items():
        torch.testing.assert_close(
            found[1][name], gradient, rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )
    torch.testing.assert_close(found[2], plain[2], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_half_precision_is_as_close_to_the_truth_as_autograd(mixer):
    """Relative error of each gradient against float64 at the same weights. In float16: the interpreter rounds to
    bfloat16 by cutting bits off."""
    model = ModelConfig(**(SMALL | {"mixer": mixer, "position": "rope" if mixer == "attention" else "none"}))
    exact = one_step(PlainNetwork, model, torch.float64)[1]
    errors = []
    for kind in (TritonNetwork, PlainNetwork):
        found = one_step(kind, model, torch.float16)[1]
        errors.append([relative(found[n], exact[n]) for n in exact if n != "halt.bias"])
    assert all(mine < 1.25 * its + 2e-3 for mine, its in zip(*errors)), errors


@pytest.mark.parametrize("variant", ["mlp", "rope"])
def test_inference_equals_the_plain_one(variant):
    model = ModelConfig(**(SMALL | VARIANTS[variant]))
    weights, arch = initial_weights(model, 9, 5, 0), architecture(model, torch.float32)
    states = torch.ones(model.d_model), -torch.ones(model.d_model)
    answers = []
    for network in ("plain", "triton"):
        net = InferenceNetwork(
            weights, *states, torch.ones(1, model.d_model), arch, 2, 1, load_implementation(network)
        )
        results = []
        for rows in (3, 2):  # the second batch is a smaller one
            x = net.embed(torch.ones(rows, 9, dtype=torch.uint8), torch.zeros(rows, dtype=torch.int32))
            z_H, z_L = net.start(rows, len(x))
            for _ in range(2):
                z_H, z_L, logits, halt = net.step(z_H, z_L, x)
            results += [logits, halt]
        answers.append(results)
    for mine, its in zip(*answers):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_training_follows_the_plain_path(mixer, dataset_folder, tmp_path, monkeypatch):  # noqa: F811
    """Losses, gradient norms and state of two whole float32 steps: network, loss head, optimiser and EMA together."""
    run = config(
        model={"d_model": 32, "heads": 1, "mixer": mixer, "expansion": 1.0, "halt_max_steps": 2},
        training={"steps": 2, "batch_size": 4},
    )
    found = {}
    for network in ("plain", "triton"):
        monkeypatch.setattr(CpuBackend, "network", network)
        made = trainer(run, dataset_folder, tmp_path, network, log_every=1, evals=1)
        assert made.run() == 0
        found[network] = made
    plain, ours = found["plain"].record.rows, found["triton"].record.rows
    for column in ("train/lm_loss", "train/halt_loss", "train/grad_norm", "train/weight_norm"):
        assert [row[column] for row in ours] == pytest.approx([row[column] for row in plain], rel=2e-5), (
            column
        )
    assert ours[-1]["eval/cross_entropy"] == pytest.approx(plain[-1]["eval/cross_entropy"], rel=2e-5)
    # Norms, not single weights: where a gradient is rounding noise, so is the sign of Adam-atan2's first updates, and
    # the second step's gradients feel it. A mistake in a kernel is an error of percents.
    tensors, expected = (found[network].state.shared_tensors() for network in ("triton", "plain"))
    for name in ("params", "ema", "moment1", "moment2", "puzzle"):
        assert relative(tensors[name], expected[name]) < 5e-3, name
