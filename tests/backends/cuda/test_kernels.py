"""Each kernel against plain PyTorch in float64: equal in float64, and close in float32, float16 and bfloat16.

The interpreter rounds to bfloat16 by cutting bits off, so its bfloat16 is twice as coarse as a GPU's.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from triton.runtime.interpreter import InterpreterBuilder

from benchmarks.kernels import candidates, elements_read, gigabytes_read
from trm.backends.cuda import attention, norm, swiglu, tokens
from trm.model import definition as network
from trm.model.definition import rms_norm

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def draw(seed, *shape, dtype=torch.float64):
    """Normal numbers that `dtype` holds exactly, in float64."""
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .to(dtype)
        .double()
    )


def close(found, expected, dtype):
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[dtype], f"relative error {error:.2e}"


def unwritten(*shape, dtype):
    """An output that no test may find as it was."""
    return torch.full(shape, math.nan, dtype=dtype)


@DTYPES
def test_residual_norm_and_its_backward(dtype):
    x, mixed, extra, grad = (draw(k, 11, 37, dtype=dtype) for k in range(4))
    total = (x + mixed).requires_grad_()
    expected = rms_norm(total, 1)
    expected.backward(grad)
    y, into, out = (unwritten(11, 37, dtype=dtype) for _ in range(3))
    scale = unwritten(11, dtype=norm.scale_dtype(y))
    norm.residual_norm(x.to(dtype), mixed.to(dtype), y, scale, extra.to(dtype), into)
    close(y, expected.detach(), dtype)
    close(into, expected.detach() + extra, dtype)
    close(scale, (total.detach().square().mean(1) + 1e-5).rsqrt(), dtype)
    norm.norm_backward(grad.to(dtype), y, scale, out)
    close(out, total.grad, dtype)
    alone = unwritten(11, 37, dtype=dtype)
    norm.residual_norm(x.to(dtype), mixed.to(dtype), None, None, extra.to(dtype), alone)
    assert torch.equal(alone, into)


@DTYPES
def test_backward_of_the_gate(dtype):
    gate_up, pushed = draw(0, 6, 2200, dtype=dtype).requires_grad_(), draw(1, 6, 1100, dtype=dtype)
    gate, up = gate_up.chunk(2, 1)
    expected = F.silu(gate) * up
    expected.backward(pushed)
    grad, hidden = gate_up.detach().to(dtype), pushed.to(dtype)
    norm.gate_backward(grad, hidden)
    close(hidden, expected.detach(), dtype)
    close(grad, gate_up.grad, dtype)


@DTYPES
@pytest.mark.parametrize("keep", [False, True])
def test_swiglu_in_the_products_epilogue(dtype, keep):
    x, weight = draw(0, 70, 40, dtype=dtype), draw(1, 2 * 48, 40, dtype=dtype)
    gate_up = x @ weight.t()
    shape = {"ROWS": 32, "COLUMNS": 32, "DEPTH": 16, "num_warps": 4, "num_stages": 1}
    kept = unwritten(70, 96, dtype=dtype) if keep else None
    hidden = swiglu.product(x.to(dtype), weight.to(dtype), unwritten(70, 48, dtype=dtype), kept, shape)
    close(hidden, F.silu(gate_up[:, :48]) * gate_up[:, 48:], dtype)
    if keep:
        close(kept, gate_up, dtype)


@pytest.fixture
def read(monkeypatch):
    """Elements of matrices that kernels have read, by load."""
    counts, load = [], InterpreterBuilder.create_masked_load

    def counted(builder, pointers, mask, *others):
        counts.append(int(mask.data.sum()))
        return load(builder, pointers, mask, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)
    return counts


@pytest.mark.parametrize("operation", ["channels", "tokens", "tokens backward"])
def test_what_a_call_reads_with_each_tile(operation, read):
    """The count of `benchmarks.kernels` is what the interpreter reads, and no tile is worse than today's worst."""
    for tile in candidates(operation, "90"):
        read.clear()
        if operation == "channels":
            long, short, inner = 2 * tile["ROWS"] - 1, 2 * tile["DEPTH"], tile["COLUMNS"] + 1
            x, weight = torch.zeros(long, short), torch.zeros(2 * inner, short)
            swiglu.product(x, weight, torch.zeros(long, inner), None, tile)
            name = "swiglu product"
        else:
            long, short, inner = tile["COLUMNS"] + 3, 13, 2 * tile["INNER"]
            x, scale = torch.zeros(short, long), torch.ones(long)
            weights = tokens.padded(torch.zeros(2 * inner, short), torch.zeros(short, inner))
            wide, y = torch.zeros(2 * inner, long), torch.zeros_like(x)
            if operation == "tokens":
                tokens.mix(x, *weights, y, scale, tile)
            else:
                outs = (y.clone(), wide, torch.zeros(inner, long), y.clone())
                tokens.mix_backward(x, *weights, y, scale, y.clone(), *outs, tile)
            name = operation.replace("tokens", "token mixing")
        assert sum(read) == elements_read(operation, tile, long, short, inner), tile
        assert (
            gigabytes_read(name, tile) < {"channels": 3.7, "tokens": 2.5, "tokens backward": 9.9}[operation]
        )


@DTYPES
def test_token_mixing_and_its_backward(dtype):
    length, columns, inner = 21, 50, 64
    x = draw(0, length, columns, dtype=dtype).requires_grad_()
    gate_up = (draw(1, 2 * inner, length) / 4).to(dtype).double().requires_grad_()
    down = (draw(2, length, inner) / 8).to(dtype).double().requires_grad_()
    grad = draw(3, length, columns, dtype=dtype)
    gate, up = (gate_up @ x).chunk(2)
    hidden = F.silu(gate) * up
    expected = rms_norm(x + down @ hidden, 0)
    expected.backward(grad)
    padded = tokens.padded(gate_up.detach().to(dtype), down.detach().to(dtype))
    padded[0][:, :length], padded[1][:length] = gate_up.detach(), down.detach()
    shape = {"COLUMNS": 32, "INNER": 32, "num_warps": 4, "num_stages": 1}
    narrow = x.detach().to(dtype)
    y = unwritten(length, columns, dtype=dtype)
    scale = unwritten(columns, dtype=norm.scale_dtype(y))
    tokens.mix(narrow, *padded, y, scale, shape)
    close(y, expected.detach(), dtype)
    again = tokens.mix(narrow, *padded, unwritten(length, columns, dtype=dtype), None, shape)
    assert torch.equal(again, y)
    total, out = (unwritten(length, columns, dtype=dtype) for _ in range(2))
    pushed, kept = unwritten(2 * inner, columns, dtype=dtype), unwritten(inner, columns, dtype=dtype)
    tokens.mix_backward(narrow, *padded, y, scale, grad.to(dtype), total, pushed, kept, out, shape)
    close(kept, hidden.detach(), dtype)
    close(out, x.grad, dtype)
    close((pushed @ narrow.t()).double(), gate_up.grad, dtype)
    close((total @ kept.t()).double(), down.grad, dtype)


@DTYPES
@pytest.mark.parametrize("rope", [False, True])
def test_attention_and_its_backward(dtype, rope):
    length, rows, heads, width = 9, 2, 2, 64
    qkv = draw(0, length, rows, 3 * width, dtype=dtype).requires_grad_()
    grad = draw(1, length, rows, width, dtype=dtype)
    cos, sin = network.rope_tables(length, width // heads)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(2)
    if rope:
        q, k = (network.rotate(t, cos.double(), sin.double()) for t in (q, k))
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
    expected = F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)
    expected.backward(grad)
    tables = (cos.contiguous(), sin.contiguous()) if rope else None
    narrow = qkv.detach().to(dtype)
    out = attention.attend(narrow, heads, tables, unwritten(length, rows, width, dtype=dtype))
    close(out, expected.detach(), dtype)
    close(attention.attend_backward(narrow, heads, tables, grad.to(dtype)), qkv.grad, dtype)
