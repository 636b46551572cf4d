"""Whether the kernel computes a network on this machine, and by which matrix products."""

from __future__ import annotations

import logging
from functools import cache

import torch

from trm.backends.cpu import library
from trm.backends.cpu.self_check import TOLERANCE, gradients_differ
from trm.model.definition import Architecture, Weights

log = logging.getLogger("trm")


def products_for(weights: Weights, arch: Architecture) -> int | None:
    """The kind of products that computes this network; None: the kernel does not cover it, or cannot be used."""
    first = next(iter(weights.values()))
    covered = first.device.type == "cpu" and "blocks.0.token_mlp.down" in weights
    if not covered or library.functions() is None:
        return None
    if arch.dtype == torch.float32:
        kinds = [library.FLOAT32]
    else:
        kinds = library.bfloat16_products() if arch.dtype == torch.bfloat16 else []
    return next((products for products in kinds if _right(products, arch.dtype)), None)


@cache
def _right(products: int, dtype: torch.dtype) -> bool:
    """Whether the kernel's gradients are right in this process."""
    try:
        error = gradients_differ(products, dtype)
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
