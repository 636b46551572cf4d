"""Steps of the CPU kernel against those through autograd: weights, EMA, puzzle table, batch slots and every metric."""

import pytest
import torch

from tests.training.conftest import config, steps, trainer
from trm.backends.cpu import build
from trm.training import kernel_step, programs
from trm.training.kernel_step import KernelStep
from trm.training.state import flatten_carry

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
CASES = {
    "Adam-atan2": {},
    "AdamW, clipped": {"optimizer": "adamw", "max_grad_norm": 0.1},
    "Lion, no EMA": {"optimizer": "lion", "ema": 0.0},
    "Muon": {"optimizer": "muon"},
    "micro-batches, halting cost": {"micro_batches": 2, "halting_cost": 0.05},
    "noise": {"micro_batches": 2, "start_noise": 0.5, "step_noise": 0.2},
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_step_through_autograd(case, dataset_folder, tmp_path, monkeypatch):
    run = config({"h_cycles": 1}, {"steps": 6, "precision": "float32", "lr": 1e-4} | CASES[case])
    kernel = trainer(run, dataset_folder, tmp_path, "kernel")
    monkeypatch.setattr(programs, "products_for", lambda weights, arch: None)
    plain = trainer(run, dataset_folder, tmp_path, "plain")
    assert type(kernel.program) is KernelStep
    assert type(plain.program) is not KernelStep
    for found in (kernel, plain):
        steps(found, 1, 6)
    mine, its = (found.state.shared_tensors() for found in (kernel, plain))
    assert mine.keys() == its.keys()
    for name in mine:
        differ = ~torch.isclose(mine[name], its[name], rtol=2e-4, atol=2e-6)
        # Lion takes the sign of sums that are zero but for rounding.
        assert differ.sum() <= 1e-4 * differ.numel(), name
    for a, b in zip(kernel.state.carries, plain.state.carries, strict=True):
        for name, tensor in flatten_carry(a).items():
            torch.testing.assert_close(tensor, flatten_carry(b)[name], rtol=1e-3, atol=1e-3)
    assert mine["metrics"][kernel_step.INDEX["halted"]] > 0
