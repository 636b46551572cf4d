"""Layers whose products are our own, against float64; the network of them, against the library's products."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.network.cpu.test_kernels import values
from tests.network.cpu.test_network import SMALL, relative
from tests.network.supervision import SEQ, VOCAB, supervision_step
from trm.network.cpu import blocked, launch, layers, tile
from trm.network.cpu.launch import run
from trm.network.cpu.network import CompiledRounds
from trm.network.eager.fused import Buffers, FusedNetwork
from trm.network.parameters import architecture, initial_weights
from trm.study.schema import ModelConfig

pytestmark = pytest.mark.skipif(
    not tile.AVAILABLE,
    reason="this processor has no products of bfloat16 (AVX512-BF16), or better ones (AMX)",
)
BF16 = torch.bfloat16
ROUNDING = 4e-3
"""Relative error, over a tensor, of rounding a result and the values before it to bfloat16."""


def weight(rows, columns, seed):
    return (values(torch.float32, rows, columns, seed=seed) / columns**0.5).to(BF16)


def prepared(kind, *weights, trained=True):
    grads = tuple(torch.zeros(w.shape) for w in weights) if trained else None
    if kind is blocked.Linear:
        layer = kind(*weights, grads[0], Buffers())
    else:
        layer = kind(weights, grads, Buffers())
    layer.prepare()
    return layer


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (96, 64), (32, 160)])
def test_panels(rows, columns):
    x = values(BF16, rows, columns)
    of_rows = torch.empty(math.ceil(columns / 64), rows // 2, 64, 2, dtype=BF16)
    run("row_panels", x, len(of_rows), x, of_rows, rows, columns)
    back = of_rows.permute(1, 3, 0, 2).reshape(rows, -1)[:, :columns]
    assert torch.equal(back, x)
    of_columns = torch.empty(math.ceil(rows / 64), columns // 2, 64, 2, dtype=BF16)
    run("column_panels", x, len(of_columns), x, of_columns, rows, columns)
    back = of_columns.permute(0, 2, 1, 3).reshape(-1, columns)[:rows]
    assert torch.equal(back, x)


@pytest.mark.parametrize("rows", range(1, 100))
def test_rows_fall_into_tiles(rows):
    """Only the last may be odd, or so small that its product spoils the rows after it."""
    left, tiles = rows, []
    while left > 0:
        tiles.append(tile.tile_rows.py_func(left))
        left -= tiles[-1]
    assert sum(tiles) == rows
    assert all(each in (4, 6) for each in tiles[:-1])
    assert tiles[-1] <= tile.ROWS


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9, 13, 97, 200])
@pytest.mark.parametrize(("inner", "width"), [(32, 96), (64, 64)])
def test_linear_and_its_backward(rows, inner, width):
    """Every way in which rows fall into tiles; widths that end within a panel."""
    w, x, grad = weight(width, inner, 1), values(BF16, rows, inner), values(BF16, rows, width, seed=2)
    linear = prepared(blocked.Linear, w)
    assert (
        relative(linear.forward(x, torch.empty(rows, width, dtype=BF16)), x.double() @ w.double().t())
        < ROUNDING
    )
    assert relative(linear.backward(grad, torch.empty_like(x)), grad.double() @ w.double()) < ROUNDING
    linear.add_gradient(grad, x)
    exact = grad.double().t() @ x.double()
    assert relative(linear.grad, exact) < 1e-6
    linear.add_gradient(grad, x)
    assert relative(linear.grad, 2 * exact) < 1e-6


def exact_layer(x, into, back, tokens):
    """norm(x + SwiGLU(x)) and what autograd needs, in float64."""
    x, into, back = (t.double().requires_grad_() for t in (x, into, back))
    gate, up = (into @ x if tokens else x @ into.t()).chunk(2, 0 if tokens else 1)
    hidden = F.silu(gate) * up
    mixed = back @ hidden if tokens else hidden @ back.t()
    total = x + mixed
    dim = 0 if tokens else 1
    return x, into, back, mixed, total * (total.square().mean(dim, keepdim=True) + 1e-5).rsqrt()


# tokens: odd and even lengths, columns that end within a panel; channels: odd rows, half a panel, several blocks
# and sums over more pairs than are taken at a time, with every remainder of rows
SHAPES = [(True, rows, 576) for rows in range(65, 78)] + [
    (True, 7, 32),
    (True, 16, 96),
    (True, 97, 128),
    (False, 31, 32),
    (False, 6, 96),
    (False, 201, 128),
]


@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_layer_and_its_backward(tokens, rows, columns):
    width, inner = (rows, 128) if tokens else (columns, 64)
    x, grad = values(BF16, rows, columns), values(BF16, rows, columns, seed=1)
    into, back = weight(2 * inner, width, 2), weight(width, inner, 3)
    leaf, exact_into, exact_back, mixed, expected = exact_layer(x, into, back, tokens)
    layer = prepared(blocked.Tokens if tokens else blocked.Channels, into, back)

    kept = layer.kept(x, rows, 0)
    out, scale = (t.clone() for t in layer.forward(x, kept, "kept"))
    assert relative(out, expected.detach()) < ROUNDING
    again = layer.forward(x, layer.kept(x, rows, None), "not kept")
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], scale)

    pushed = layer.backward(grad, x, kept)
    mixed.backward(grad.double())
    assert relative(pushed, leaf.grad) < 1.5 * ROUNDING
    assert relative(layer.into_grad, exact_into.grad) < 1.5 * ROUNDING
    assert relative(layer.back_grad, exact_back.grad) < 1.5 * ROUNDING
    first = layer.into_grad.clone()
    layer.backward(grad, x, kept)
    assert relative(layer.into_grad, 2 * first) < 1e-6


def test_prepare_takes_the_weights_as_they_are():
    x, into, back = values(BF16, 8, 64), weight(128, 64, 1), weight(64, 64, 2)
    layer = prepared(blocked.Channels, into, back, trained=False)
    before = layer.forward(x, None, "out")[0].clone()
    into.mul_(2)
    assert torch.equal(layer.forward(x, None, "out")[0], before)
    layer.prepare()
    assert (
        relative(layer.forward(x, None, "out")[0], exact_layer(x, into, back, False)[-1].detach()) < ROUNDING
    )


@pytest.mark.parametrize("extreme", [-3e38, -300.0, 300.0, math.nan, math.inf, -math.inf])
def test_extreme_gates(extreme):
    """An overflow shows; what is merely large does not overflow."""
    x = torch.zeros(4, 64, dtype=BF16)
    x[0, 0], x[0, 1] = extreme, 1
    into, back = torch.zeros(128, 64, dtype=BF16), torch.zeros(64, 64, dtype=BF16)
    into[0, 0], into[64, 1], back[5, 0] = 1, 1, 1
    layer = prepared(blocked.Channels, into, back)
    kept = layer.kept(x, 4, 0)
    out, _ = layer.forward(x, kept, "out")
    assert out[1:].isfinite().all()
    pushed = layer.backward(torch.ones_like(x), x, kept)
    if math.isfinite(extreme):
        assert pushed.isfinite().all()
        if abs(extreme) < 1e3:
            assert relative(out, exact_layer(x, into, back, False)[-1].detach()) < ROUNDING
    else:
        assert not out[0].isfinite().all()
        assert not pushed[0].isfinite().all()


@pytest.mark.parametrize(("kind", "rows"), [(blocked.Tokens, 65), (blocked.Channels, 601)])
def test_threads_change_no_bit(monkeypatch, kind, rows):
    columns = 640 if kind.tokens else 64
    width = rows if kind.tokens else columns
    into, back = weight(256, width, 2), weight(width, 128, 3)
    x, grad = values(BF16, rows, columns), values(BF16, rows, columns, seed=1)
    assert x.numel() >= launch.SPREAD
    started, parallel = set(), launch._parallel()
    monkeypatch.setattr(launch, "_parallel", lambda: lambda *args: (started.add(args[2]), parallel(*args)))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            layer = prepared(kind, into, back)
            kept = layer.kept(x, rows, 0)
            out, scale = (t.clone() for t in layer.forward(x, kept, "out"))
            found.append([out, scale, layer.backward(grad, x, kept), layer.into_grad, layer.back_grad])
    finally:
        torch.set_num_threads(before)
    assert started == {2, 3}
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others))


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_agrees_with_the_library(monkeypatch, mixer):
    model = ModelConfig(**(SMALL | {"d_model": 64, "mixer": mixer}))
    mine = supervision_step(FusedNetwork, model, BF16)
    monkeypatch.setenv("TRM_CPU_PRODUCTS", "0")
    its = supervision_step(FusedNetwork, model, BF16)
    exact = supervision_step(FusedNetwork, model, torch.float32)
    for name, gradient in exact[1].items():
        if gradient.norm() > 1e-6:
            assert relative(mine[1][name], gradient) < 1.25 * relative(its[1][name], gradient) + 1e-3, name


def test_taken_where_it_fits(monkeypatch):
    assert blocked.usable(weight(64, 128, 0))
    assert blocked.usable(weight(96, 64, 0))
    for down in (weight(16, 64, 0), weight(64, 32, 0), weight(64, 64, 0).float()):
        assert not blocked.usable(down)
    monkeypatch.setattr(tile, "AVAILABLE", False)
    assert not blocked.usable(weight(64, 128, 0))


def test_the_network_takes_them(monkeypatch):
    def kinds(mixer):
        model = ModelConfig(**(SMALL | {"d_model": 64, "mixer": mixer}))
        weights = {name: w.to(BF16) for name, w in initial_weights(model, SEQ, VOCAB, 0).items()}
        mixing, channels = CompiledRounds(weights, None, architecture(model, BF16))._blocks[0]
        return type(mixing._into if mixer == "attention" else mixing), type(channels)

    assert kinds("mlp") == (blocked.Tokens, blocked.Channels)
    assert kinds("attention") == (blocked.Linear, blocked.Channels)
    monkeypatch.setenv("TRM_CPU_PRODUCTS", "0")
    assert kinds("mlp") == (layers.Tokens, layers.Channels)
    assert kinds("attention") == (layers.Linear, layers.Channels)
