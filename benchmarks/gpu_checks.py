"""Every kernel with every tile worth timing, and the whole network, against float64 on the given device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernels import candidates
from trm.backends.cuda.checks import Check, KernelChecks, Shapes, relative
from trm.backends.cuda.network import TritonNetwork
from trm.backends.cuda.tiles import architecture_of
from trm.model import losses
from trm.model.parameters import Layout, architecture, initial_weights
from trm.model.plain import PlainNetwork
from trm.study.schema import ModelConfig


def kernels(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Iterator[Check]:
    """Every kernel with every tile; a tile that does not run on this device is printed and skipped."""
    checks = KernelChecks(shapes, dtype, device)
    yield from checks.elementwise()
    tiled = {
        "channels": checks.channels,
        "tokens": lambda tile: checks.tokens(tile, None),
        "tokens backward": lambda tile: checks.tokens(None, tile),
    }
    for name, check in tiled.items():
        for tile in candidates(name, architecture_of(device)):
            try:
                yield from check(tile)
            except Exception as error:
                print(f"  {name} {tile} does not run here: {str(error).splitlines()[0]}")
    for rope in (False, True):
        yield from checks.attention(rope)


def whole_network(model: ModelConfig, batch: int, device: torch.device) -> Iterator[Check]:
    """One supervision step in bfloat16: the errors of loss and gradients may be 1.3 times autograd's at most."""
    layout = Layout.of(model, 81, 11)
    generator = torch.Generator().manual_seed(0)
    length = 81 + model.puzzle_tokens
    states = torch.randn(2, length, batch, model.d_model, generator=generator)
    drawn = torch.randint(1, 11, (2, batch, 81), generator=generator)
    inputs, labels = drawn.to(device=device, dtype=torch.uint8)
    weights = initial_weights(model, 81, 11, 0)
    runs = []
    dtypes = (torch.float64, torch.bfloat16, torch.bfloat16)
    for kind, dtype in zip((PlainNetwork, PlainNetwork, TritonNetwork), dtypes, strict=True):
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
        value = losses.judge(outputs[2], labels, 0).cross_entropy.mean() + outputs[3].mean()
        value.backward()
        runs.append({"loss": value.detach()} | layout.views(grads) | {"puzzle": puzzle.grad})
    exact, plain, ours = runs
    for name, expected in exact.items():
        if expected.norm() > 0:
            autograd, error = relative(plain[name], expected), relative(ours[name], expected)
            limit = 1.3 * autograd + (2e-3 if name == "loss" else 5e-3)
            yield Check(f"{model.mixer} {name} (autograd {autograd:.1e})", error, limit)
