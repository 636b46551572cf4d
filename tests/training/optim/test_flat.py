import pytest
import torch

from trm.model.parameters import Layout, mapped
from trm.study.schema import TrainingConfig
from trm.training.optim import flat
from trm.training.optim.muon import orthogonal


def updated(training, params, gradients, ema=None, chunk=1 << 62, layout=None):
    """The state after updates of `params` and `ema` in place."""
    state = flat.moments(training, params)
    for t, gradient in enumerate(gradients, 1):
        rates = flat.optimiser(training).rates(training, torch.tensor(float(t)), torch.tensor(training.lr))
        flat.update(training, params, mapped(torch.clone, gradient), state, ema, rates, chunk, layout)
    return state


def steps(training, count=4, dtype=torch.float32, size=1000):
    """Parameters and average after `count` updates with random gradients, and the gradients."""
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(size, generator=generator).to(dtype)
    start, ema = params.clone(), params.float().clone()
    gradients = torch.randn(count, size, generator=generator)
    gradients[:, :10] = 0
    updated(training, params, gradients, ema, chunk=96)
    return start, params, ema, gradients


def by_the_book(training, start, gradients):
    """The published formulas, in float64."""
    p, b1, b2, lr = start.double(), training.beta1, training.beta2, training.lr
    m, v, ema = torch.zeros_like(p), torch.zeros_like(p), p.clone()
    for t, g in enumerate(gradients.double(), 1):
        p = p * (1 - lr * training.weight_decay)
        if training.optimizer == "lion":
            p = p - lr * torch.sign(b1 * m + (1 - b1) * g)
            m = b2 * m + (1 - b2) * g
        else:
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
            if training.optimizer == "adamw":
                p = p - lr * m_hat / (v_hat.sqrt() + 1e-8)
            else:
                p = p - lr / (1 - b1**t) * torch.atan2(m, v.sqrt() / (1 - b2**t) ** 0.5)
        ema = training.ema * ema + (1 - training.ema) * p
    return p, ema


@pytest.mark.parametrize("optimizer", ["adam_atan2", "adamw", "lion"])
def test_equals_the_published_formula(optimizer):
    training = TrainingConfig(optimizer=optimizer, lr=0.01, weight_decay=0.3, ema=0.9)
    start, params, ema, gradients = steps(training)
    expected, expected_ema = by_the_book(training, start, gradients)
    torch.testing.assert_close(params, expected.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ema, expected_ema.float(), rtol=1e-5, atol=1e-6)


def test_bfloat16_weights_are_rounded_once_a_step():
    training = TrainingConfig(lr=0.01, weight_decay=0.3)
    start, params, _, gradients = steps(training, count=1, dtype=torch.bfloat16)
    expected, _ = by_the_book(training, start, gradients)
    assert torch.equal(params, expected.float().bfloat16())


LAYOUT = Layout(
    {"embed.weight": (5, 8), "blocks.0.mlp.gate_up": (12, 8), "blocks.0.mlp.down": (8, 6), "halt.bias": (2,)}
)


def random_buffers(layout, count):
    """As many; the gaps of the layout are zero."""
    generator, found = torch.Generator().manual_seed(0), torch.zeros(count, layout.size)
    for view in (view for buffer in found for view in layout.views(buffer).values()):
        view.copy_(torch.randn(view.shape, generator=generator))
    return found


def muon_steps(chunk=1 << 62):
    """Parameters before and after three steps of Muon, and the gradients."""
    training = TrainingConfig(optimizer="muon", lr=0.01, weight_decay=0.3, beta1=0.95)
    params, *gradients = random_buffers(LAYOUT, 4)
    start = params.clone()
    updated(training, params, gradients, None, chunk, LAYOUT)
    return start, params, gradients


def matrices_of(buffer):
    """What Muon makes orthogonal, by name: gate and up are two."""
    return {
        (name, k): part
        for name, view in LAYOUT.views(buffer).items()
        if name.startswith("blocks")
        for k, part in enumerate(view.chunk(2 if "gate_up" in name else 1))
    }


def test_muon_equals_torch_in_the_blocks_and_adam_atan2_elsewhere(monkeypatch):
    start, params, gradients = muon_steps()
    # torch's iterations are in bfloat16
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", lambda x, *_: orthogonal(x))
    matrices = {name: torch.nn.Parameter(part.clone()) for name, part in matrices_of(start).items()}
    options = {"lr": 0.01, "weight_decay": 0.3, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    theirs = torch.optim.Muon(matrices.values(), **options)
    for gradient in gradients:
        for name, part in matrices_of(gradient).items():
            matrices[name].grad = part.clone()
        theirs.step()
    for name, part in matrices_of(params).items():
        torch.testing.assert_close(part, matrices[name].detach(), rtol=1e-5, atol=1e-6)
    adam = TrainingConfig(optimizer="adam_atan2", lr=0.01, weight_decay=0.3, beta1=0.95)
    expected, _ = by_the_book(adam, start, torch.stack(gradients))
    ours = LAYOUT.views(params)
    for name in ("embed.weight", "halt.bias"):
        torch.testing.assert_close(ours[name], LAYOUT.views(expected.float())[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(muon_steps(chunk=16)[1], params, rtol=1e-6, atol=1e-7)
    assert params.count_nonzero() == sum(view.numel() for view in ours.values())  # the gaps stay zero


def test_newton_schulz_makes_singular_values_alike():
    x = torch.randn(2, 40, 24, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(x))
    assert ((values > 0.6) & (values < 1.3)).all()
    assert torch.equal(orthogonal(torch.zeros(3, 4)), torch.zeros(3, 4))


@pytest.mark.parametrize("optimizer", ["adam_atan2", "adamw", "lion", "muon"])
def test_a_tensor_for_each_parameter_changes_nothing(optimizer):
    # sizes of 32: torch's atan2 rounds otherwise what does not fill a vector
    sizes = {"embed.weight": (4, 8), "blocks.0.mlp.gate_up": (12, 8), "blocks.0.mlp.down": (8, 4)}
    layout = Layout(sizes | {"halt.bias": (32,)})
    training = TrainingConfig(optimizer=optimizer, lr=0.01, weight_decay=0.3)
    params, ema, *gradients = whole = random_buffers(layout, 5)
    apart = [[view.clone() for view in layout.views(buffer).values()] for buffer in whole]
    moments = updated(training, params, gradients, ema, layout=layout)
    its = updated(training, apart[0], apart[2:], apart[1], layout=layout)
    for buffer, parts in zip((params, ema, *moments), (*apart[:2], *its), strict=True):
        assert torch.equal(buffer, layout.flat(parts))
