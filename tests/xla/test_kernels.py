"""The TPU kernels, interpreted on a CPU, and the recursion's own backward against plain torch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def steps(mixer: str, kind: str) -> dict[str, Any]:
    """Answer, latent and gradients of two rounds in float32, in plain bfloat16, or by the kernels."""
    from trm.network import definition as network
    from trm.network.parameters import architecture, initial_weights
    from trm.network.tpu.recursion import Mesh, recursion, usable
    from trm.study.schema import ModelConfig

    position = "rope" if mixer == "attention" else "none"
    options = {"mixer": mixer, "d_model": 128, "heads": 2, "layers": 1, "puzzle_tokens": 3}
    model = ModelConfig.model_validate(options | {"position": position})
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    arch = architecture(model, dtype)
    w = {name: t.requires_grad_() for name, t in initial_weights(model, 16, 6, 0).items() if "blocks" in name}
    generator = torch.Generator().manual_seed(1)
    length, rows = 19, 4  # five padded tokens
    z_H, z_L, x, grad = (torch.randn(length, rows, 128, generator=generator).to(dtype) for _ in range(4))
    x.requires_grad_()
    if kind == "kernels":
        assert usable(w, arch, length, rows)
        z_H, z_L = recursion(z_H, z_L, x, w, arch, Mesh(1), h_cycles=2, l_cycles=1)
    else:
        with torch.no_grad():
            z_H, z_L = network.recursion_round(z_H, z_L, x, w, arch, 1)
        z_H, z_L = network.recursion_round(z_H, z_L, x, w, arch, 1)
    z_H.backward(grad)
    return {"z_H": z_H, "z_L": z_L, "x": x.grad} | {name: weight.grad for name, weight in w.items()}


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_kernels_are_as_near_to_float32_as_plain_bfloat16(mixer: str):
    exact, plain, found = (steps(mixer, kind) for kind in ("float32", "bfloat16", "kernels"))
    for name, tensor in exact.items():
        size = tensor.norm().item()
        off = (found[name].float() - tensor).norm().item() / size
        expected = (plain[name].float() - tensor).norm().item() / size
        assert 0 < off < 1.2 * expected < 0.15, (name, off, expected)


def test_models_that_do_not_fit_the_kernels_are_left_to_xla():
    from trm.network.definition import Architecture
    from trm.network.tpu.recursion import usable

    def weights(width: int, inner: int, token_inner: int | None = None) -> dict[str, Any]:
        found = {"blocks.0.channel_mlp.down": torch.empty(width, inner)}
        return (
            found
            if token_inner is None
            else found | {"blocks.0.token_mlp.down": torch.empty(97, token_inner)}
        )

    arch = Architecture(2, 8, 16, True, torch.bfloat16)
    assert usable(weights(512, 1536), arch, 97, 192)
    assert usable(weights(512, 1536, 512), arch, 97, 192)
    assert not usable(weights(512, 1536, 288), arch, 97, 192)  # model.multiple=32
    assert not usable(weights(1024, 2816), arch, 97, 192)
    assert not usable(weights(96, 256), arch, 97, 192)
    assert not usable(weights(512, 1536), arch, 97, 3)
    assert not usable(weights(512, 1536), arch, 916, 192)
    assert not usable(weights(512, 1536), arch._replace(dtype=torch.float32), 97, 192)


@pytest.mark.parametrize(
    "equation", ["qbhk,sbhk->bhqs", "bhqs,sbhk->qbhk", "qbhk,dhk->qbd", "il,lbd->ibd", "li,ibd->lbd"]
)
def test_float32_contractions_are_einsum(equation: str):
    from trm.network.tpu.network import contract

    size = dict(zip("qbhksdil", range(2, 10)))
    generator = torch.Generator().manual_seed(0)
    names = equation.split("->")[0].split(",")
    a, b = (torch.randn([size[name] for name in term], generator=generator) for term in names)
    torch.testing.assert_close(contract(equation, a, b), torch.einsum(equation, a, b))
