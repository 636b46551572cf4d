"""Rematerialisation follows from predicted memory, and changes no number."""

from typing import Any

import pytest
import torch

from tests.backends.supervision import SEQ, VOCAB, supervision_step
from trm.backends.tpu.network import HBM_SHARE, XlaNetwork
from trm.backends.tpu.recursion import block_of
from trm.errors import UserError
from trm.model.parameters import Layout, architecture, initial_weights
from trm.study.schema import ModelConfig

MODEL = ModelConfig(d_model=32, heads=2, puzzle_tokens=2, h_cycles=1, l_cycles=2)
ROWS = 64


def gradients() -> tuple[XlaNetwork, torch.Tensor]:
    made: list[XlaNetwork] = []

    def network(*parts: Any) -> XlaNetwork:
        made.append(XlaNetwork(*parts))
        return made[0]

    _, grads, _ = supervision_step(network, MODEL, torch.float32, rows=ROWS)
    return made[0], torch.cat([grad.flatten() for grad in grads.values()])


def test_blocks_are_computed_again_where_their_activations_would_not_fit(monkeypatch):
    network, kept = gradients()
    assert network.remat is False
    w = initial_weights(MODEL, SEQ, VOCAB, 0)
    each = block_of(w, architecture(MODEL, torch.float32), SEQ + 2).bytes(ROWS, 4, xla=True)
    need = 3 * MODEL.layers * each + 28.0 * Layout.of(MODEL, SEQ, VOCAB).size
    monkeypatch.setenv("TRM_XLA_HBM_GIB", str(1.05 * need / 0.9 / 2**30))
    assert gradients()[0].remat is False
    monkeypatch.setenv("TRM_XLA_HBM_GIB", str(0.95 * need / 0.9 / 2**30))
    network, again = gradients()
    assert network.remat is True
    assert torch.allclose(kept, again, rtol=1e-5, atol=1e-7)
    monkeypatch.setenv("TRM_XLA_REMAT", "0")
    assert gradients()[0].remat is False


def test_wrong_knobs_are_refused(monkeypatch):
    monkeypatch.setenv("TRM_XLA_REMAT", "yes")
    with pytest.raises(UserError, match="TRM_XLA_REMAT=yes: choose 0, 1 or auto"):
        gradients()
    monkeypatch.setenv("TRM_XLA_REMAT", "auto")
    monkeypatch.setenv("TRM_XLA_HBM_GIB", "64")
    with pytest.raises(UserError, match="TRM_XLA_HBM_GIB=64: give a number of GiB"):
        gradients()


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_as_many_blocks_keep_their_activations_with_kernels_as_fit(mixer, monkeypatch):
    model = MODEL.model_copy(update={"mixer": mixer, "d_model": 128})
    layout, arch = Layout.of(model, 16, 6), architecture(model, torch.bfloat16)
    w, rows = initial_weights(model, 16, 6, 0), 4096
    each = 2 * rows * 24 * ((4 if mixer == "mlp" else 8) * 128 + 3 * w["blocks.0.channel_mlp.down"].shape[1])
    assert block_of(w, arch, 18).kernel_bytes(rows) == each  # 18 tokens are padded to 24

    def kept(room: float = 100.0, variable: str = "auto") -> tuple[int, bool | None]:
        """Applications that keep theirs, of 6, where the memory holds `room` of them beside the weights."""
        monkeypatch.setenv("TRM_XLA_HBM_GIB", str((room * each + 28 * layout.size) / HBM_SHARE / 2**30))
        monkeypatch.setenv("TRM_XLA_REMAT", variable)
        network = XlaNetwork(layout, torch.zeros(layout.size), torch.zeros(layout.size), arch)
        return network._choose_keep(w, 18, rows, l_cycles=2), network.remat

    assert kept(8.1) == (6, False)
    assert kept(7.9) == (5, True)
    assert kept(0.5) == (0, True)
    assert kept(variable="1") == (0, True)
    assert kept(0.5, variable="0") == (6, False)
