"""The TPU kernels, interpreted on a CPU, and the recursion's own backward against plain torch."""

from functools import cache
from typing import Any

import pytest

from tests.shell import ROOT, python
from tests.xla.conftest import REASON

pytest.importorskip("torch_xla", reason=REASON)

import jax.numpy as jnp
import numpy as np
import torch
from jax._src.pallas.mosaic import interpret
from jax.experimental.pallas import tpu as pltpu

from trm.backends.tpu import recursion
from trm.backends.tpu.calls import Kernel, Product, jitted
from trm.backends.tpu.network import contract
from trm.backends.tpu.recursion import SENT, usable
from trm.model import definition
from trm.model.definition import Architecture
from trm.model.parameters import architecture, initial_weights
from trm.study.schema import ModelConfig


@cache
def steps(mixer: str, kind: str, keep: int = 2, puzzles: tuple[int, ...] = (0, 1, 2, 3)) -> dict[str, Any]:
    """Answer, latent and gradients of two rounds in float32, in plain bfloat16, or by the kernels, of which `keep` of
    two block applications keep their activations. Gradients: of the loss of some `puzzles`."""
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
        z_H, z_L = recursion.recursion(
            z_H, z_L, x, w, arch, recursion.Mesh(1), h_cycles=2, l_cycles=1, keep=keep
        )
    else:
        with torch.no_grad():
            z_H, z_L = definition.recursion_round(z_H, z_L, x, w, arch, 1)
        z_H, z_L = definition.recursion_round(z_H, z_L, x, w, arch, 1)
    z_H[:, list(puzzles)].backward(grad[:, list(puzzles)])
    return {"z_H": z_H, "z_L": z_L, "x": x.grad} | {name: weight.grad for name, weight in w.items()}


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_kernels_are_as_near_to_float32_as_plain_bfloat16(mixer):
    """So are weight gradients that two chips send to each other."""
    exact, plain, found = (steps(mixer, kind) for kind in ("float32", "bfloat16", "kernels"))
    chips = [steps(mixer, "kernels", puzzles=part) for part in ((0, 1), (2, 3))]
    sent = {name: sum(chip[name].to(SENT) for chip in chips) for name in exact if "blocks" in name}

    def error(tensor: Any, name: str) -> float:
        return float((tensor.float() - exact[name]).norm().detach() / exact[name].norm().detach())

    for name in exact:
        expected = error(plain[name], name)
        assert 0 < error(found[name], name) < 1.2 * expected < 0.15, name
        assert name not in sent or error(sent[name], name) < 1.2 * expected, name


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_blocks_that_are_computed_again_give_the_same_gradients(mixer):
    kept, again = steps(mixer, "kernels"), steps(mixer, "kernels", keep=1)
    assert all(torch.equal(tensor, again[name]) for name, tensor in kept.items())


def test_models_that_do_not_fit_the_kernels_are_left_to_xla():
    def weights(width: int, inner: int, token_inner: int | None = None) -> dict[str, Any]:
        tokens = {} if token_inner is None else {"blocks.0.token_mlp.down": torch.empty(97, token_inner)}
        return tokens | {"blocks.0.channel_mlp.down": torch.empty(width, inner)}

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
def test_float32_contractions_are_einsum(equation):
    size = dict(zip("qbhksdil", range(2, 10)))
    generator = torch.Generator().manual_seed(0)
    names = equation.split("->")[0].split(",")
    a, b = (torch.randn([size[name] for name in term], generator=generator) for term in names)
    torch.testing.assert_close(contract(equation, a, b), torch.einsum(equation, a, b))


def shapes_of(kernel: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a kernel's arguments."""
    rows, width, inner = kernel.puzzles * kernel.padded, kernel.width, kernel.inner
    streams = [(rows, width)] * (3 if kernel.backward else 1 + kernel.added)
    if kernel.kind == "channel" and kernel.backward:
        streams[2] = (rows, 2 * inner)
    if kernel.kind == "attention" and kernel.backward:
        streams[2] = (rows, 3 * width)
    if kernel.kind == "token":
        weights = [(2 * inner, kernel.padded), (kernel.padded, inner)]
    elif kernel.kind == "channel":
        weights = [(width, 2 * inner), (inner, width)]
    else:
        weights = [(width, 3 * width), (width, width)]
    tables = [(kernel.padded, 128)] * (2 if kernel.rope else 0)
    return [(shape, "bfloat16") for shape in streams + weights] + [(shape, "float32") for shape in tables]


def interpreted(
    kernel: Any, shapes: list[tuple[tuple[int, ...], str]]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Arguments, and results of a plain interpretation and of an interpreted TPU: two cores, transfers in the
    background, memory full of NaN. Float32 arrays."""
    rng = np.random.default_rng(0)
    given = [jnp.asarray(rng.normal(size=shape) * 0.2, dtype=getattr(jnp, dtype)) for shape, dtype in shapes]
    tpu = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_per_device=2)
    plain, found = jitted(kernel, interpret=True)(*given), jitted(kernel, interpret=tpu)(*given)
    assert not interpret.races.races_found
    given, plain, found = (
        [np.asarray(array.astype(jnp.float32)) for array in arrays] for arrays in (given, plain, found)
    )
    return given, plain, found


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("kind", "inner"), [("token", 256), ("channel", 512), ("attention", 64)])
def test_kernels_on_an_interpreted_tpu(kind, inner, backward):
    """No race, nothing read that was not written."""
    kernel = Kernel(kind, backward, not backward, 0, 4, 11, 128, inner, rope=kind == "attention")
    for one, other in zip(*interpreted(kernel, shapes_of(kernel))[1:], strict=True):
        # the same operations on the same tiles; XLA's CPU compiler may fuse them otherwise: one step of bfloat16
        np.testing.assert_allclose(other, one, rtol=2**-7, atol=2**-7 * np.abs(one).max())


@pytest.mark.parametrize(("left", "right", "added"), [(768, 128, True), (128, 256, False), (128, 128, True)])
def test_weight_gradients_on_an_interpreted_tpu(left, right, added):
    product = Product(24, left, right, added, "float32")
    shapes = [((24, left), "bfloat16"), ((24, right), "bfloat16")]
    given, _, found = interpreted(product, shapes + [((left, right), "float32")] * added)
    expected = given[0].T @ given[1] + (given[2] if added else 0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("added", [False, True])
def test_weight_gradients_of_few_and_of_many_rows_are_the_same(added, dtype, monkeypatch):
    """By the kernel, and by XLA's product."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(96, width, generator=generator).bfloat16() for width in (256, 128))
    total = torch.randn(256, 128, generator=generator) if added else None
    kernels = recursion.Kernels(4, 24, 128, Architecture(1, 2, 64, False, torch.bfloat16), [])
    few = kernels.gradient(left, right, total, getattr(torch, dtype))
    monkeypatch.setattr(recursion, "PRODUCT_ROWS", 95)
    monkeypatch.delattr(recursion.Kernels, "_call")
    many = kernels.gradient(left, right, total, getattr(torch, dtype))
    torch.testing.assert_close(few, many)


EXTREMES = [("attention", 128, 512, 32), ("token", 128, 512, 512), ("channel", 128, 384, 2048)]
EXTREMES += [("channel", 97, 128, 6144), ("attention", 17, 128, 128), ("attention", 97, 128, 16)]
PRODUCTS = [(3072, 512), (512, 1536), (12288, 128), (512, 512), (384, 1280)]
COMPILED = """
import os
from trm.checks.tpu_check.worker import environment
from trm.study.slices import Slice
where = Slice("one chip", 1, "v4:2x2x1")
os.environ.update(environment(where))
import jax, jax.export, jax.numpy as jnp
from tests.xla.test_kernels import EXTREMES, PRODUCTS, shapes_of
from trm.checks.tpu_check.compiler import compile_for
from trm.backends.tpu.calls import Kernel, Product, jitted
from trm.backends.tpu.recursion import PRODUCT_ROWS as rows
def fits(kernel, shapes):
    given = [jax.ShapeDtypeStruct(shape, getattr(jnp, dtype)) for shape, dtype in shapes]
    module = jax.export.export(jitted(kernel), platforms=["tpu"])(*given).mlir_module()
    return "fits" if compile_for(module, where).fits else "does not fit"
for way in ("forward", "backward"):
    for kind, *sizes in EXTREMES:
        added = 2 * (way == "forward" and kind != "channel")
        backward = way == "backward"
        kernel = Kernel(kind, backward, not backward, added, 16, *sizes, rope=kind == "attention")
        print(way, kind, *sizes, fits(kernel, shapes_of(kernel)))
for left, right in PRODUCTS:
    shapes = [((rows, left), "bfloat16"), ((rows, right), "bfloat16"), ((left, right), "float32")]
    print("product", left, right, fits(Product(rows, left, right, True, "float32"), shapes))
"""


def test_the_largest_shapes_that_kernels_take_compile():
    done = python("-c", COMPILED, cwd=ROOT, timeout=900, check=True)
    shapes = [(way, *shape) for way in ("forward", "backward") for shape in EXTREMES]
    shapes += [("product", *shape) for shape in PRODUCTS]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("forward", "backward", "product"))]
    assert lines == [" ".join(map(str, shape)) + " fits" for shape in shapes]
