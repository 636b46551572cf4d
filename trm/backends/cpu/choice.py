"""Whether the kernel computes a network on this machine, and by which matrix products.

Every process compares a small training step by the kernel with PyTorch before it uses the kernel.
"""

import logging
from functools import cache

import torch

from trm.backends.cpu import library, network
from trm.model.act import Rows, empty_carry
from trm.model.definition import Architecture, Weights
from trm.model.losses import halting_loss, judge
from trm.model.parameters import Layout, architecture, initial_weights
from trm.model.plain import PlainNetwork
from trm.study.schema import ModelConfig
from trm.study.stages import Recursion

log = logging.getLogger("trm")
CELLS, VOCAB, ROWS, WIDTH = 6, 5, 3, 40  # padded to an odd number of vectors
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.2}
"""Largest relative error of the gradients. Errors of the kernel, such as a wrong row or a lost sum, are larger."""


def products_for(weights: Weights, arch: Architecture) -> int | None:
    """The kind of products that computes this network; None: the kernel does not cover it, or cannot be used."""
    first = next(iter(weights.values()))
    covered = first.device.type == "cpu" and len(weights["embed.weight"]) <= library.MAX_VOCAB
    if not covered or library.functions() is None:
        return None
    if arch.dtype == torch.float32:
        kinds = [library.FLOAT32]
    else:
        kinds = library.bfloat16_products() if arch.dtype == torch.bfloat16 else []
    mixer = "mlp" if "blocks.0.token_mlp.down" in weights else "attention"
    return next((products for products in kinds if _right(products, arch.dtype, mixer)), None)


@cache
def _right(products: int, dtype: torch.dtype, mixer: str) -> bool:
    """Whether the kernel's gradients are right in this process."""
    try:
        error = gradients_differ(products, dtype, mixer)
    except ValueError:  # Linux does not grant AMX's registers, in some virtual machines
        return False
    if error < TOLERANCE[dtype]:
        return True
    log.warning(
        "the CPU kernel is not used: on this processor its gradients in %s are wrong (relative error %.1e); PyTorch "
        "trains, several times slower",
        dtype,
        error,
    )
    return False


def gradients_differ(products: int, dtype: torch.dtype, mixer: str) -> float:
    """Relative error of the kernel's gradients against those by autograd in float32; NaN if they are not finite."""
    position = "rope" if mixer == "attention" else "none"
    fields = {
        "mixer": mixer, "position": position, "d_model": WIDTH, "heads": 2, "layers": 2, "h_cycles": 2, "l_cycles": 1,
        "multiple": 8, "puzzle_tokens": 1,
    }  # fmt: skip
    model = ModelConfig.model_validate(fields)
    layout = Layout.of(model, CELLS, VOCAB)
    params, grads, exact = (torch.zeros(layout.size) for _ in range(3))
    for name, weight in initial_weights(model, CELLS, VOCAB, 0).items():
        layout.views(params)[name].copy_(weight)
    draw = torch.Generator().manual_seed(0)
    cells = torch.randint(1, VOCAB, (2, ROWS, CELLS), dtype=torch.uint8, generator=draw)
    rows = Rows(cells[0], cells[1], torch.zeros(ROWS, dtype=torch.int32))
    h_init, l_init = torch.randn(2, WIDTH, generator=draw).to(dtype)
    table = torch.randn(1, WIDTH, generator=draw)

    settings = network.Settings(ROWS, 0.0, 0, h_init, l_init, table)
    step = network.Supervision(
        layout, params, grads, architecture(model, dtype), (CELLS + 1, ROWS), settings, products
    )
    carry, following = (empty_carry(CELLS + 1, WIDTH, CELLS, ROWS, dtype) for _ in range(2))
    results = network.Results(torch.zeros(library.RESULTS), torch.zeros(model.halt_max_steps))
    step.prepare(model.l_cycles)
    incoming = network.Incoming(rows, torch.zeros(ROWS, dtype=torch.int32))
    step(carry, following, incoming, Recursion.of(model), results)

    plain = PlainNetwork(layout, params, exact, architecture(model, torch.float32))
    plain.prepare()
    shape = carry.z_H.shape
    states = h_init.float().expand(shape), l_init.float().expand(shape)
    seen = rows.inputs, table.expand(ROWS, WIDTH)
    _, _, logits, halt = plain(*states, *seen, model.h_cycles, model.l_cycles)
    answer = judge(logits, rows.labels, 0)
    ((answer.cross_entropy + halting_loss(halt, answer.exact)).sum() / ROWS).backward()
    return float((grads - exact).norm() / exact.norm())
