"""Every compiled pass against float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from trm.backends.cpu import kernels, launch
from trm.backends.cpu.kernels import COLUMNS
from trm.backends.cpu.launch import run

DTYPES = (torch.bfloat16, torch.float32)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def values(dtype, *shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, exact):
    """Equal up to one rounding of the result (and float32 arithmetic before it)."""
    rtol = 5e-3 if found.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=2e-6)


@each_dtype
@pytest.mark.parametrize("tokens", [False, True])
def test_gate_and_its_backward(dtype, tokens):
    rows, columns = 5, 37
    shape = (2 * rows, columns) if tokens else (rows, 2 * columns)
    gate_up, pushed = 3 * values(dtype, *shape), values(dtype, rows, columns, seed=1)
    dim, stride = (0, columns) if tokens else (1, 2 * columns)
    exact = gate_up.double().requires_grad_()
    hidden = F.silu(exact.chunk(2, dim)[0]) * exact.chunk(2, dim)[1]
    hidden.backward(pushed.double())

    out = torch.empty_like(pushed)
    run("gate", gate_up, rows, *gate_up.chunk(2, dim), out, columns, stride)
    close(out, hidden.detach())
    run("gate_backward", gate_up, rows, *gate_up.chunk(2, dim), pushed, columns, stride)
    close(pushed, hidden.detach())
    close(gate_up, exact.grad)


@each_dtype
@pytest.mark.parametrize("dim", [0, 1])
def test_norm_of_a_sum_and_its_backward(dtype, dim):
    shape = (7, COLUMNS + 45) if dim == 0 else (7, 45)
    groups = 2 if dim == 0 else 7
    x, y, g1, g2 = (values(dtype, *shape, seed=seed) for seed in range(4))
    total = (x.double() + y.double()).requires_grad_()
    scale = (total.square().mean(dim, keepdim=True) + 1e-5).rsqrt()
    (total * scale).backward(g1.double() + g2.double())

    out, scales = torch.empty_like(x), torch.empty(shape[1 - dim])
    sizes = shape if dim == 0 else shape[1:]
    run("norm_rows" if dim else "norm_columns", x, groups, x, y, out, scales, *sizes)
    close(out, (total * scale).detach())
    torch.testing.assert_close(scales.double(), scale.detach().flatten(), rtol=1e-6, atol=0)

    back = torch.empty_like(x)
    if dim:
        run("norm_rows_backward", x, groups, g1, g2, out, back, scales, *sizes)
    else:
        sums = torch.empty_like(scales)
        run("norm_columns_backward", x, groups, g1, g2, out, back, scales, *sizes, sums)
    # the rounded output enters the product with its own gradient
    bound = 2e-2 if dtype == torch.bfloat16 else 2e-6
    assert (back.double() - total.grad).norm() < bound * total.grad.norm()


@each_dtype
def test_accumulate(dtype):
    total, x = values(torch.float32, 3, 11), values(dtype, 3, 11, seed=1)
    expected = total + x.float()
    run("accumulate", x, 3, total, x, 11)
    assert torch.equal(total, expected)
    run("accumulate_transposed", x, 3, total, x.t().contiguous(), 11, 3)
    assert torch.equal(total, expected + x.float())


@each_dtype
def test_heads_are_split_turned_and_joined(dtype):
    length, batch, heads, width = 5, 3, 2, 8
    x = values(dtype, length * batch, 3 * heads * width)
    angle = torch.rand(length, width // 2, generator=torch.Generator().manual_seed(1))
    cos, sin = angle.cos(), angle.sin()

    def split(x):
        q, k, v = x.view(length, batch, 3, heads, 2, width // 2).unbind(2)
        c, s = (t.to(x.dtype)[:, None, None] for t in (cos, sin))

        def turned(t):
            a, b = t.unbind(-2)
            return torch.stack((a * c - b * s, b * c + a * s), -2)

        parts = turned(q) * width**-0.5, turned(k), v
        return [p.flatten(-2).permute(1, 2, 0, 3).flatten(0, 1) for p in parts]

    sizes = batch, heads, width, length
    found = [torch.empty(batch * heads, length, width, dtype=dtype) for _ in range(3)]
    run("split_heads", x, len(x), x, *found, cos, sin, *sizes)
    exact = x.double().requires_grad_()
    expected = split(exact)
    for mine, its in zip(found, expected):
        close(mine, its.detach())

    grads = [values(dtype, *t.shape, seed=seed) for seed, t in enumerate(found)]
    torch.autograd.backward(expected, [g.double() for g in grads])
    back = torch.empty_like(x)
    run("split_heads_backward", x, len(x), back, *grads, cos, sin, *sizes)
    close(back, exact.grad)

    joined = torch.empty(length * batch, heads * width, dtype=dtype)
    run("join_heads", x, len(x), found[2], joined, *sizes, 0)
    assert torch.equal(joined, x[:, 2 * heads * width :])
    again = torch.empty_like(found[2])
    run("join_heads", x, len(x), joined, again, *sizes, 1)
    assert torch.equal(again, found[2])


@each_dtype
def test_softmax_and_its_backward(dtype):
    x, grad = 4 * values(dtype, 6, 19), values(dtype, 6, 19, seed=1)
    exact = x.double().requires_grad_()
    expected = exact.softmax(1)
    run("softmax", x, 6, x, 19)
    close(x, expected.detach())
    expected.backward(grad.double())
    run("softmax_backward", x, 6, grad, x, 19)
    bound = 2e-2 if dtype == torch.bfloat16 else 2e-6
    assert (grad.double() - exact.grad).norm() < bound * exact.grad.norm()


def test_rounds_to_bfloat16_as_torch_does():
    """One row of one column: y / rms is y times a float32 number, rounded once."""
    x = values(torch.bfloat16, 4096, 2)
    zero, out, scale = torch.zeros_like(x), torch.empty_like(x), torch.empty(4096)
    run("norm_rows", x, 4096, x, zero, out, scale, 2)
    assert torch.equal(out, (x.float() * scale[:, None]).bfloat16())


@each_dtype
@pytest.mark.parametrize("extreme", [-300.0, 300.0, math.nan, math.inf])
def test_extreme_gates(dtype, extreme):
    gate_up = torch.tensor([[extreme, 1.0]], dtype=dtype)
    out = torch.empty(1, 1, dtype=dtype)
    run("gate", gate_up, 1, *gate_up.chunk(2, 1), out, 1, 2)
    if math.isfinite(extreme):
        close(out, F.silu(gate_up[:, :1].double()))
    else:
        assert not out.isfinite().any()
    row = torch.tensor([[0.0, extreme, 1.0]], dtype=dtype)
    run("softmax", row, 1, row, 3)
    assert row.isfinite().all() == math.isfinite(extreme)


def arguments(dtype):
    """Rows and arguments of every pass, large enough to be spread over threads."""
    rows, columns, groups = 64, 520, 3
    length, batch, heads, width = 40, 8, 4, 32

    def some(seed, *shape):
        return values(dtype, *(shape or (rows, columns)), seed=seed)

    def wide(*shape):
        return values(torch.float32, *shape, seed=9)

    tokens, sizes = length * batch, (batch, heads, width, length)
    flat, split = (tokens, heads * width), (batch * heads, length, width)
    qkv = (some(0, tokens, 3 * heads * width), *(some(seed, *split) for seed in (1, 2, 3)))
    angles = wide(length, width // 2), wide(length, width // 2)
    a, b, c, d = (some(seed) for seed in range(4))
    return {
        "gate": (rows, a, b, c, columns, columns),
        "gate_backward": (rows, a, b, c, columns, columns),
        "norm_rows": (rows, a, b, c, wide(rows), columns),
        "norm_columns": (groups, a, b, c, wide(columns), rows, columns),
        "norm_rows_backward": (rows, a, b, c, d, wide(rows), columns),
        "norm_columns_backward": (groups, a, b, c, d, wide(columns), rows, columns, wide(columns)),
        "accumulate": (rows, wide(rows, columns), a, columns),
        "accumulate_transposed": (rows, wide(rows, columns), some(0, columns, rows), columns, rows),
        "split_heads": (tokens, *qkv, *angles, *sizes),
        "split_heads_backward": (tokens, *qkv, *angles, *sizes),
        "join_heads": (tokens, some(0, *split), some(1, *flat), *sizes, 0),
        "softmax": (rows, a, columns),
        "softmax_backward": (rows, a, b, columns),
    }


@each_dtype
@pytest.mark.parametrize("name", kernels.__all__)
def test_threads_change_no_bit(monkeypatch, dtype, name):
    rows, *given = arguments(dtype)[name]
    like = next(a for a in given if not isinstance(a, int) and a.dtype == dtype)
    assert like.numel() >= launch.SPREAD
    started, parallel = [], launch._parallel()
    monkeypatch.setattr(launch, "_parallel", lambda: lambda *args: (started.append(args), parallel(*args)))
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            copies = [a if isinstance(a, int) else a.clone() for a in given]
            run(name, like, rows, *copies)
            found.append([a for a in copies if not isinstance(a, int)])
    finally:
        torch.set_num_threads(before)
    assert [args[2] for args in started] == [2, 3]
    assert any(not torch.equal(a, b) for a, b in zip(found[0], (g for g in given if not isinstance(g, int))))
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others))
