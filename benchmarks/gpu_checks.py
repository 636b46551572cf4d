"""Every kernel with every tile worth timing, and the whole network, against float64 on whatever device torch uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from trm.network import losses
from trm.network.cuda import loss, optimizer
from trm.network.cuda.network import TritonNetwork
from trm.network.cuda.tiles import OPERATIONS, architecture_of, parse
from trm.network.eager.plain import PlainNetwork
from trm.network.parameters import Layout, architecture, initial_weights
from trm.study.schema import ModelConfig
from trm.training.kernel_checks import TOLERANCE, Check, KernelChecks, Shapes, Tile, relative

__all__ = ["TOLERANCE", "Check", "Shapes", "kernels", "whole_network"]


def candidates(operation: str, device: torch.device) -> list[Tile]:
    """The tiles of an operation that are worth timing on this device."""
    choices = OPERATIONS[operation].candidates[architecture_of(device)]
    return [tile for choice in choices if (tile := parse(operation, choice)) is not None]


def kernels(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Iterator[Check]:
    """Every kernel with every tile; a tile that does not run here is named and left out."""
    checks = KernelChecks(shapes, dtype, device)

    def if_it_runs(name: str, check: Callable[..., Iterator[Check]], *tiles: Tile | None) -> Iterator[Check]:
        try:
            yield from check(*tiles)
        except Exception as error:
            print(f"  {name} {tiles} does not run here: {str(error).splitlines()[0]}")

    yield from checks.norms()
    yield from checks.gate()
    yield from checks.loss()
    if checks.products:
        for tile in candidates("channels", device):
            yield from if_it_runs("channels", checks.channels, tile)
        for tile in candidates("tokens", device):
            yield from if_it_runs("tokens", checks.tokens, tile, None)
        for tile in candidates("tokens backward", device):
            yield from if_it_runs("tokens backward", checks.tokens, None, tile)
        for rope in (False, True):
            yield from checks.attention(rope)
    if dtype == torch.float32:
        for kind in optimizer.KINDS:
            yield from checks.optimiser(kind)


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
