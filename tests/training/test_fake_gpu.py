"""Whole steps at the paper's size with fake tensors: right shapes and devices, and nothing that waits for the host."""

import json

import pytest
from torch.utils import backend_registration

from tests.shell import python

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot register a device in Python (2.13 can)",
)
ROPE = {"mixer": "attention", "position": "rope"}
FAULTS = {
    "item": "DataDependentOutputException",
    "copy": "moves data between ['gpu:0', 'cpu']",
    "constant": "moves data between ['gpu:0', 'cpu'",
}


def case(model=None, workers=1, fault="", **training):
    """One run of the paper's size."""
    training = {"batch_size": 768, "precision": "bfloat16"} | training
    return [{"model": model or {}, "training": training}, workers, fault]


CASES = {
    "attention, 4 workers": case(ROPE, 4, micro_batches=2, max_grad_norm=1.0),
    "8 workers": case(workers=8, halting_cost=0.01),
    "no puzzle tokens": case({"puzzle_tokens": 0}, optimizer="lion"),
    **{name: case(precision=name, optimizer="adamw") for name in ("float16", "bfloat16_weights")},
    **{f"fault {name}": case({"h_cycles": 1, "l_cycles": 1}, fault=name) for name in FAULTS},
}


@pytest.fixture(scope="module")
def found():
    """What was wrong with each case."""
    done = python("-W", "error", "-m", "tests.training.fake_gpu", json.dumps([*CASES.values()]), check=True)
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("fault")])
def test_a_step_stays_on_the_device(name, found):
    assert found[name] == ""


@pytest.mark.parametrize("name", FAULTS)
def test_what_waits_for_the_host_is_found(name, found):
    assert FAULTS[name] in str(found[f"fault {name}"])
