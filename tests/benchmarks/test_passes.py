"""The count of bytes against the passes that really run."""

import pytest
import torch

from benchmarks.passes import step_bytes
from trm.network.cpu import attention, blocked, launch, layers, network, tile
from trm.network.eager.fused import FusedNetwork
from trm.network.parameters import Layout, architecture
from trm.study.schema import ModelConfig

# tensors of the block's dtype read and written, by kernel: times their elements
TOUCHED = {
    "gate": 3, "gate_backward": 6, "norm_rows": 3, "norm_columns": 3,
    "norm_rows_backward": 4, "norm_columns_backward": 4, "split_heads": 2,
    "split_heads_backward": 2, "join_heads": 2, "softmax": 2, "softmax_backward": 3, "row_panels": 2,
}  # fmt: skip
PRODUCTS = {
    "token_layer", "channel_layer", "project", "token_layer_backward", "channel_layer_backward", "weight_gradient"
}  # fmt: skip


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_count(monkeypatch, mixer, train, whole):
    if whole and not tile.AVAILABLE:
        pytest.skip("this processor has no products of bfloat16 (AVX512-BF16), or better ones (AMX)")
    width = 64 if whole else 16
    model = ModelConfig(d_model=width, heads=2, puzzle_tokens=1, h_cycles=2, l_cycles=1, mixer=mixer)
    cells, rows, vocab = 7, 3, 5
    layout = Layout.of(model, cells, vocab)
    params, grads = torch.zeros(layout.size), torch.zeros(layout.size)
    net = FusedNetwork(layout, params, grads, architecture(model, torch.bfloat16))
    moved, sums = 0, 0
    really = launch.run

    def counted(name, like, count, *arguments, **more):
        nonlocal moved, sums
        if name.startswith("accumulate"):
            # the sum of the input's gradient is no weight's
            sums += 10 * like.numel() if like.shape[-2:] != (rows, width) or like.dim() == 2 else 0
        elif name not in PRODUCTS:
            elements = arguments[2].numel() if name.startswith("gate") else like.numel()
            moved += 2 * TOUCHED[name] * elements
        really(name, like, count, *arguments, **more)

    net.prepare()
    for module in (attention, blocked, layers, network):
        monkeypatch.setattr(module, "run", counted)
    state = torch.zeros(cells + 1, rows, width, dtype=torch.bfloat16)
    puzzle = torch.zeros(rows, width).requires_grad_()
    outputs = net(state, state, torch.zeros(rows, cells, dtype=torch.uint8), puzzle, 2, 1)
    if train:
        (outputs[2].sum() + outputs[3].sum()).backward()
    weights = sum(w.numel() for name, w in layout.views(params).items() if "blocks" in name)
    optimiser = weights * (20 + 16 + 6) if train else 0
    assert step_bytes(model, cells, rows, 2, train, whole) == moved + sums + optimiser
