"""Each kernel against plain PyTorch in float64: equal in float64, and close in float32, float16 and bfloat16.

The interpreter rounds to bfloat16 by cutting bits off, so its bfloat16 is twice as coarse as a GPU's.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from triton.runtime.interpreter import InterpreterBuilder

from benchmarks.kernels import candidates, elements_read, gigabytes_read
from trm.network import definition as network
from trm.network import losses
from trm.network.cuda import attention, loss, norm, optimizer, swiglu, tokens
from trm.network.definition import rms_norm
from trm.network.parameters import Moments
from trm.study.schema import TrainingConfig
from trm.training.optim import flat

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
@pytest.mark.parametrize("axis", [0, 1])
def test_residual_norm_and_its_backward(dtype, axis):
    x, mixed, extra, grad = (draw(k, 11, 37, dtype=dtype) for k in range(4))
    total = (x + mixed).requires_grad_()
    expected = rms_norm(total, axis)
    expected.backward(grad)
    y, into, out = (unwritten(11, 37, dtype=dtype) for _ in range(3))
    scale = unwritten(37 if axis == 0 else 11, dtype=norm.scale_dtype(y))
    norm.residual_norm(x.to(dtype), mixed.to(dtype), axis, y, scale, extra.to(dtype), into)
    close(y, expected.detach(), dtype)
    close(into, expected.detach() + extra, dtype)
    close(scale, (total.detach().square().mean(axis) + 1e-5).rsqrt(), dtype)
    norm.norm_backward(grad.to(dtype), y, scale, axis, out)
    close(out, total.grad, dtype)
    alone = unwritten(11, 37, dtype=dtype)
    norm.residual_norm(x.to(dtype), mixed.to(dtype), axis, None, None, extra.to(dtype), alone)
    assert torch.equal(alone, into)


@DTYPES
@pytest.mark.parametrize("over_tokens", [False, True])
def test_gate_and_its_backward(dtype, over_tokens):
    rows, columns = 6, 1100
    shape = (2 * rows, columns) if over_tokens else (rows, 2 * columns)
    gate_up, pushed = draw(0, *shape, dtype=dtype).requires_grad_(), draw(1, rows, columns, dtype=dtype)
    gate, up = gate_up.chunk(2, 0 if over_tokens else 1)
    expected = F.silu(gate) * up
    expected.backward(pushed)
    kernel_gate_up = gate_up.detach().to(dtype)
    hidden = swiglu.gate(kernel_gate_up, unwritten(rows, columns, dtype=dtype))
    close(hidden, expected.detach(), dtype)
    hidden = pushed.to(dtype)
    swiglu.gate_backward(kernel_gate_up, hidden)
    close(hidden, expected.detach(), dtype)
    close(kernel_gate_up, gate_up.grad, dtype)


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


@DTYPES
def test_loss_head(dtype):
    """Ties, cells without a label, a row without any, and logits on both sides of zero."""
    logits = (3 * draw(0, 9, 4, 11, dtype=dtype)).to(dtype).double()
    labels = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    labels[2] = 0
    labels[3] = logits[:, 3].argmax(-1)
    logits[0, 0, 4:6] = 12.0
    weights = draw(2, 4)
    exact_logits, narrow = logits.clone().requires_grad_(), logits.to(dtype).requires_grad_()
    expected, found = losses.judge(exact_logits, labels, 0), loss.judge(narrow, labels, 0)
    for name in ("accuracy", "exact", "valid"):
        assert torch.equal(getattr(found, name).double(), getattr(expected, name).double()), name
    assert found.exact.tolist()[3] == 1.0
    assert found.valid.tolist() == [1, 1, 0, 1]
    close(found.cross_entropy.detach(), expected.cross_entropy.detach(), dtype)
    (expected.cross_entropy * weights).sum().backward()
    (found.cross_entropy * weights).sum().backward()
    close(narrow.grad, exact_logits.grad, dtype)


def test_arctangent_at_its_ends():
    training = TrainingConfig(optimizer="adam_atan2", beta1=0.0, beta2=0.0, weight_decay=0.0)
    one = torch.ones(())
    for gradient, expected in ((0.0, 0.0), (1e-30, None), (5.0, math.pi / 4), (-5.0, -math.pi / 4)):
        p, g = torch.zeros(1), torch.tensor([gradient])
        state = Moments(torch.zeros(1), torch.zeros(1))
        optimizer.update(training, p, g, state, None, flat.Rates(one, one, one))
        assert math.isfinite(p.item())
        if expected is not None:
            assert -p.item() == pytest.approx(expected, rel=1e-6)


def by_hand(training, p, g, m, v, average, r):
    """The rules as they are published, in float64; parameters are rounded to `p`'s dtype once a step."""
    wide = p.double()
    if training.optimizer == "lion":
        direction = torch.sign(training.beta1 * m + (1 - training.beta1) * g)
        m.copy_(training.beta2 * m + (1 - training.beta2) * g)
    else:
        m.copy_(training.beta1 * m + (1 - training.beta1) * g)
        v.copy_(training.beta2 * v + (1 - training.beta2) * g * g)
        deviation = v.sqrt() * r.v_scale
        direction = (
            torch.atan2(m, deviation) if training.optimizer == "adam_atan2" else m / (deviation + 1e-8)
        )
    p.copy_(r.keep * wide - r.step_size * direction)
    average.copy_(training.ema * average + (1 - training.ema) * p.double())


@pytest.mark.parametrize("kind", ["adam_atan2", "adamw", "lion"])
@pytest.mark.parametrize("weights", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_optimiser_and_average(kind, weights):
    """Three steps over 2,500 parameters; gradients of all magnitudes."""
    training = TrainingConfig(optimizer=kind, lr=1e-2, weight_decay=0.3, ema=0.9)
    wide = torch.float64 if weights == torch.float64 else torch.float32
    runs = []
    for update, dtype in ((by_hand, torch.float64), (optimizer.update, wide)):
        params = draw(0, 2500).to(
            weights if update is optimizer.update or weights == torch.bfloat16 else dtype
        )
        average, m, v = params.to(dtype), torch.zeros(2500, dtype=dtype), torch.zeros(2500, dtype=dtype)
        for step in (1, 2, 3):
            gradient = (draw(step, 2500) * torch.logspace(-12, 3, 2500, dtype=torch.float64)).to(dtype)
            rates = flat.Rates(
                *(x.to(dtype) for x in flat.rates(training, torch.tensor(float(step)), torch.tensor(1e-2)))
            )
            if update is by_hand:
                update(training, params, gradient, m, v, average, rates)
            else:
                update(training, params, gradient, Moments(m, v), average, rates)
        runs.append((params, average, m, v))
    for found, expected in zip(runs[1], runs[0]):
        if expected.count_nonzero():
            error = (found.double() - expected.double()).norm() / expected.double().norm()
            assert error < {torch.float64: 1e-7, torch.float32: 1e-6, torch.bfloat16: 2e-2}[weights]
