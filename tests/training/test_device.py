"""Whole steps at the paper's size on a device without values: right shapes, and nothing that waits for the host.

A tensor of torch's meta device knows everything but its values, so reading one on the host raises.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.training.conftest import config
from trm.backends.base import Backend, precision_of
from trm.model.act import Rows
from trm.study.schema import ModelConfig
from trm.study.stages import Recursion
from trm.study.tasks import Sizes
from trm.training.state import TrainState
from trm.training.step import Batch, TrainStep

CELLS, SYMBOLS, PUZZLES = 81, 11, 100


class Watch(TorchDispatchMode):
    """Refuses operations that move data between host and device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        devices = {leaf.device for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)}
        if len(devices) > 1:
            raise RuntimeError(f"{func.name()} moves data between host and device")
        return out


class MetaBackend(Backend):
    """A GPU that is not there."""

    name, device = "cuda", torch.device("meta")

    def precision(self, requested, mixer="mlp"):
        return precision_of(requested, True, "this GPU")

    def place(self, tensor):
        return tensor.to(self.device)

    def device_name(self):
        return "meta"

    def peak_memory(self):
        return 0


def two_steps(model, training, workers=1):
    """Take them as one of `workers` workers."""
    paper = ModelConfig().model_dump() | model
    run, backend = config(paper, {"batch_size": 768, "precision": "bfloat16"} | training), MetaBackend()
    backend.world = workers
    state = TrainState(run, Sizes(CELLS, SYMBOLS, 10, 0), backend.precision(run.training.precision), backend)

    def made(dtype, *shape):
        return torch.zeros(shape, dtype=dtype, device=backend.device)

    cells, rows = made(torch.uint8, PUZZLES, CELLS), state.local_batch
    step = TrainStep(state, Rows(cells, cells.clone(), made(torch.int32, PUZZLES)), backend)
    tables = made(torch.uint8, rows, SYMBOLS), made(torch.int16, rows, CELLS)
    batch = Batch(made(torch.int32, rows), *tables, made(torch.int32, rows))

    def constant(*values, **options):
        raise RuntimeError("torch.tensor copies a value of the host")  # not seen by Watch

    with Watch(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "tensor", constant)
        for _ in range(2):
            step(batch, Recursion.of(run.model))
    with pytest.raises(RuntimeError, match="cannot be called on meta"):
        state.step.item()  # else this test would find nothing
    assert {tensor.device for tensor in [*state.changed_tensors(), *state.reduced]} == {backend.device}


ROPE = {"mixer": "attention", "position": "rope"}
CASES = {
    "attention, 4 workers": (ROPE, {"micro_batches": 2, "max_grad_norm": 1.0}, 4),
    "8 workers": ({}, {"halting_cost": 0.01}, 8),
    "no puzzle tokens": ({"puzzle_tokens": 0}, {"optimizer": "lion"}),
    "float16": ({}, {"precision": "float16", "optimizer": "adamw"}),
    "bfloat16 weights": ({}, {"precision": "bfloat16_weights", "optimizer": "adamw"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_stays_on_the_device(case):
    two_steps(*CASES[case])
