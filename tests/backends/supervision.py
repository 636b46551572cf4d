"""One supervision step of a tiny network, forward and backward, for every way of computing it."""

import torch

from trm.model.parameters import Layout, architecture, initial_weights

SEQ, VOCAB = 9, 5


def supervision_step(kind, model, dtype, weights_dtype=None, rows=4, seed=0):
    """Outputs, weight gradients and puzzle gradient of the second of two equal steps (it runs on used buffers)."""
    layout = Layout.of(model, SEQ, VOCAB)
    wide = torch.promote_types(dtype, torch.float32)
    params = torch.zeros(layout.size, dtype=weights_dtype or wide)
    for name, tensor in initial_weights(model, SEQ, VOCAB, seed).items():
        layout.views(params)[name].copy_(tensor)
    layout.views(params)["halt.weight"].fill_(0.1)
    grads = torch.full((layout.size,), 9.0, dtype=wide)
    net = kind(layout, params, grads, architecture(model, dtype))
    generator = torch.Generator().manual_seed(0)
    length = SEQ + model.puzzle_tokens
    z_H, z_L = torch.randn(2, length, rows, model.d_model, generator=generator).to(dtype)
    inputs = torch.randint(0, VOCAB, (rows, SEQ), dtype=torch.uint8, generator=generator)
    puzzle = torch.randn(rows, model.d_model, generator=generator).to(wide).requires_grad_()
    direction = torch.randn(SEQ, rows, VOCAB, generator=generator).to(wide)
    for _ in range(2):
        puzzle.grad = None
        net.prepare()
        outputs = net(z_H, z_L, inputs, puzzle, model.h_cycles, model.l_cycles)
        ((outputs[2] * direction).sum() + outputs[3].sum()).backward()
    return [output.detach() for output in outputs], layout.views(grads), puzzle.grad
