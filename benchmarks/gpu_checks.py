"""Every kernel, the whole network and the captured step against float64, on whatever device torch uses here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.network import definition as network
from trm.network import losses
from trm.network.cuda import attention, loss, norm, optimizer, swiglu, tokens
from trm.network.cuda.common import INTERPRETED
from trm.network.cuda.network import TritonNetwork
from trm.network.cuda.tiles import OPERATIONS, architecture_of, parse
from trm.network.definition import rms_norm
from trm.network.eager.plain import PlainNetwork
from trm.network.parameters import Layout, Moments, architecture, initial_weights
from trm.study.schema import ModelConfig, TrainingConfig
from trm.training.optim import flat

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


class Check(NamedTuple):
    """A kernel's output against float64."""

    name: str
    error: float
    """Norm of the difference over the norm."""
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is below the limit (NaN is not)."""
        return self.error < self.limit


class Shapes(NamedTuple):
    """How large the check is."""

    batch: int = 8
    length: int = 97
    width: int = 512
    heads: int = 8
    inner: int = 1536
    token_inner: int = 512


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm."""
    expected = expected.detach().double()
    return float((found.detach().double() - expected).norm() / expected.norm())


def candidates(operation: str, device: torch.device) -> list[dict[str, int]]:
    """The tiles of an operation that are worth timing on this device."""
    choices = OPERATIONS[operation].candidates[architecture_of(device)]
    return [tile for choice in choices if (tile := parse(operation, choice)) is not None]


def kernels(shapes: Shapes, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Iterator[Check]:
    """Every kernel with every tile that fits, on fresh random inputs and poisoned outputs."""
    generator = torch.Generator(device).manual_seed(seed)
    limit = TOLERANCE[dtype]

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        drawn = torch.randn(shape, generator=generator, device=device, dtype=torch.float64) * std
        return drawn.to(dtype).double()

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.full(shape, math.nan, device=device, dtype=kind)

    def check(name: str, found: Tensor, expected: Tensor, factor: float = 1.0) -> Check:
        return Check(f"{name} {str(dtype).removeprefix('torch.')}", relative(found, expected), factor * limit)

    rows, columns = shapes.length * shapes.batch, shapes.batch * shapes.width
    for axis, shape in ((1, (rows, shapes.width)), (0, (shapes.length, columns))):
        x, mixed, extra, grad = (draw(*shape) for _ in range(4))
        before = (x + mixed).requires_grad_()
        expected = rms_norm(before, axis)
        expected.backward(grad)
        y, into, out = (empty(*shape) for _ in range(3))
        scale = empty(shape[1 - axis], kind=norm.scale_dtype(y))
        norm.residual_norm(x.to(dtype), mixed.to(dtype), axis, y, scale, extra.to(dtype), into)
        yield check(f"norm axis {axis}", y, expected)
        yield check(f"norm axis {axis} into", into, expected + extra)
        norm.norm_backward(grad.to(dtype), y, scale, axis, out)
        yield check(f"norm axis {axis} backward", out, before.grad)

    x, weight = draw(rows, shapes.width), draw(2 * shapes.inner, shapes.width, std=shapes.width**-0.5)
    projection = (x @ weight.t()).requires_grad_()
    gate, up = projection.chunk(2, 1)
    expected = F.silu(gate) * up
    pushed = draw(rows, shapes.inner)
    expected.backward(pushed)
    kept = projection.detach().to(dtype)
    yield check("gate", swiglu.gate(kept, empty(rows, shapes.inner)), expected)
    hidden = pushed.to(dtype)
    swiglu.gate_backward(kept, hidden)
    yield check("gate backward", kept, projection.grad)
    yield check("gate backward hidden", hidden, expected)
    # on a GPU float32 products go to the library (trm.network.cuda.layers)
    for tile in candidates("channels", device) if dtype.itemsize == 2 or INTERPRETED else ():
        name = "swiglu product " + "x".join(map(str, tile.values()))
        kept, hidden = empty(rows, 2 * shapes.inner), empty(rows, shapes.inner)
        try:
            swiglu.product(x.to(dtype), weight.to(dtype), hidden, kept, tile)
        except Exception as error:
            print(f"  {name} does not run here: {str(error).splitlines()[0]}")
            continue
        yield check(name, hidden, expected)
        yield check(name + " projection", kept, projection)
        swiglu.product(x.to(dtype), weight.to(dtype), hidden.fill_(math.nan), None, tile)
        yield check(name + " alone", hidden, expected)

    if dtype.itemsize == 2 or INTERPRETED:
        yield from _token_checks(shapes, dtype, draw, empty, check)
        yield from _attention_checks(shapes, dtype, draw, empty, check)
    yield from _loss_and_optimiser(shapes, dtype, draw, check)


def _token_checks(shapes: Shapes, dtype: torch.dtype, draw: Any, empty: Any, check: Any) -> Iterator[Check]:
    length, columns, inner = shapes.length, shapes.batch * shapes.width, shapes.token_inner
    x = draw(length, columns).requires_grad_()
    gate_up = draw(2 * inner, length, std=length**-0.5).requires_grad_()
    down = draw(length, inner, std=inner**-0.5).requires_grad_()
    grad = draw(length, columns)
    gate, up = (gate_up @ x).chunk(2)
    hidden = F.silu(gate) * up
    expected = rms_norm(x + down @ hidden, 0)
    expected.backward(grad)
    narrow = x.detach().to(dtype)
    padded = tokens.padded(gate_up.detach().to(dtype), down.detach().to(dtype))
    padded[0][:, :length], padded[1][:length] = gate_up.detach(), down.detach()
    y = empty(length, columns)
    scale = empty(columns, kind=norm.scale_dtype(y))
    for tile in candidates("tokens", x.device):
        name = "token mixing " + "x".join(map(str, tile.values()))
        try:
            tokens.mix(narrow, *padded, y.fill_(math.nan), scale.fill_(math.nan), tile)
        except Exception as error:
            print(f"  {name} does not run here: {str(error).splitlines()[0]}")
            continue
        yield check(name, y, expected)
    y.copy_(expected.detach())
    scale.copy_((x + down @ hidden).detach().square().mean(0).add(1e-5).rsqrt())
    for tile in candidates("tokens backward", x.device):
        name = "token mixing backward " + "x".join(map(str, tile.values()))
        total, out = empty(length, columns), empty(length, columns)
        pushed, kept = empty(2 * inner, columns), empty(inner, columns)
        try:
            tokens.mix_backward(narrow, *padded, y, scale, grad.to(dtype), total, pushed, kept, out, tile)
        except Exception as error:
            print(f"  {name} does not run here: {str(error).splitlines()[0]}")
            continue
        yield check(name, out, x.grad)
        yield check(name + " hidden", kept, hidden)
        yield check(name + " gate, up", pushed.double() @ x.detach().t(), gate_up.grad)
        yield check(name + " down", total.double() @ hidden.detach().t(), down.grad)


def _attention_checks(
    shapes: Shapes, dtype: torch.dtype, draw: Any, empty: Any, check: Any
) -> Iterator[Check]:
    for rope in (False, True):
        qkv = draw(shapes.length, shapes.batch, 3 * shapes.width).requires_grad_()
        grad = draw(shapes.length, shapes.batch, shapes.width)
        head = shapes.width // shapes.heads
        cos, sin = (t.contiguous() for t in network.rope_tables(shapes.length, head, qkv.device))
        q, k, v = qkv.unflatten(-1, (3, shapes.heads, -1)).unbind(2)
        if rope:
            q, k = (network.rotate(t, cos.double(), sin.double()) for t in (q, k))
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2) * head**-0.5, -1)
        expected = (weights @ v).permute(2, 0, 1, 3).flatten(2)
        expected.backward(grad)
        narrow, tables = qkv.detach().to(dtype), (cos, sin) if rope else None
        out = attention.attend(narrow, shapes.heads, tables, empty(*expected.shape))
        yield check(f"attention rope={rope}", out, expected)
        attention.attend_backward(narrow, shapes.heads, tables, grad.to(dtype))
        yield check(f"attention backward rope={rope}", narrow, qkv.grad, 2)


def _loss_and_optimiser(shapes: Shapes, dtype: torch.dtype, draw: Any, check: Any) -> Iterator[Check]:
    logits = draw(81, shapes.batch, 11, std=3.0).requires_grad_()
    labels = torch.randint(0, 11, (shapes.batch, 81), device=logits.device).to(torch.uint8)
    weights = draw(shapes.batch)
    expected = losses.judge(logits, labels, 0)
    (expected.cross_entropy * weights).sum().backward()
    narrow = logits.detach().to(dtype).requires_grad_()
    found = loss.judge(narrow, labels, 0)
    (found.cross_entropy * weights).sum().backward()
    yield check("loss", found.cross_entropy, expected.cross_entropy)
    yield check("loss backward", narrow.grad, logits.grad)
    same = all(
        torch.equal(getattr(found, n).double(), getattr(expected, n).double()) for n in ("accuracy", "exact")
    )
    yield Check("loss metrics", 0.0 if same else math.inf, 1e-9)
    if dtype != torch.float32:
        return
    for kind in ("adam_atan2", "adamw", "lion"):
        training = TrainingConfig(optimizer=kind, lr=1e-2, weight_decay=0.1, ema=0.9)
        params, gradient = draw(100_003).float(), (draw(100_003) ** 5).float()
        results = []
        for update in (flat.update, optimizer.update):
            p, average = params.clone(), params.clone()
            state = Moments(torch.zeros_like(p), torch.zeros_like(p[: 0 if kind == "lion" else None]))
            for step in (1.0, 2.0):
                rates = flat.rates(training, p.new_tensor(step), p.new_tensor(1e-2))
                update(training, p, gradient * step, state, average, rates, 1 << 20)
            results.append((p - params, average - params))
        for name, ours, theirs in zip(("weights", "average"), results[1], results[0]):
            yield check(f"optimiser {kind} {name}", ours, theirs, 5)


def whole_network(model: ModelConfig, batch: int, device: torch.device) -> Iterator[Check]:
    """One supervision step in bfloat16: each gradient's error against float64 is at most 1.3 times autograd's."""
    layout = Layout.of(model, 81, 11)
    generator = torch.Generator().manual_seed(0)
    length = 81 + model.puzzle_tokens
    states = torch.randn(2, length, batch, model.d_model, generator=generator)
    inputs = torch.randint(1, 11, (batch, 81), generator=generator).to(torch.uint8).to(device)
    labels = torch.randint(1, 11, (batch, 81), generator=generator).to(torch.uint8).to(device)
    weights = initial_weights(model, 81, 11, 0)
    runs = []
    for kind, dtype in (
        (PlainNetwork, torch.float64),
        (PlainNetwork, torch.bfloat16),
        (TritonNetwork, torch.bfloat16),
    ):
        wide = torch.promote_types(dtype, torch.float32)
        params = torch.zeros(layout.size, dtype=wide, device=device)
        for name, view in layout.views(params).items():
            view.copy_(weights[name])
        layout.views(params)["halt.weight"].fill_(0.1)
        grads = torch.zeros_like(params)
        net = kind(layout, params, grads, architecture(model, dtype))
        z_H, z_L = states.bfloat16().to(device).to(dtype)
        puzzle = torch.zeros(batch, model.d_model, device=device, dtype=wide, requires_grad=True)
        net.prepare()
        outputs = net(z_H, z_L, inputs, puzzle, model.h_cycles, model.l_cycles)
        judge = loss.judge if kind is TritonNetwork else losses.judge
        value = judge(outputs[2], labels, 0).cross_entropy.mean() + outputs[3].mean()
        value.backward()
        runs.append((value.detach(), layout.views(grads) | {"puzzle": puzzle.grad}))
    exact, plain, ours = runs
    limit = 1.3 * relative(plain[0], exact[0]) + 2e-3
    yield Check(
        f"{model.mixer} loss (autograd {relative(plain[0], exact[0]):.1e})",
        relative(ours[0], exact[0]),
        limit,
    )
    for name, gradient in exact[1].items():
        if gradient.norm() > 0:
            theirs = relative(plain[1][name], gradient)
            error = relative(ours[1][name], gradient)
            yield Check(f"{model.mixer} {name} (autograd {theirs:.1e})", error, 1.3 * theirs + 5e-3)
