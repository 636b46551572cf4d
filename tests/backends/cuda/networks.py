"""The tiny network of the kernels' tests: Triton's interpreter is slow."""

from __future__ import annotations

from functools import partial

from tests.backends.supervision import SEQ, VOCAB, supervision_step

__all__ = ["SEQ", "SMALL", "VOCAB", "one_step", "relative"]
SMALL = {"d_model": 32, "heads": 1, "puzzle_tokens": 2, "h_cycles": 2, "l_cycles": 1, "expansion": 1.0}
one_step = partial(supervision_step, rows=3)


def relative(found, exact):
    """Relative error, a number."""
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()
