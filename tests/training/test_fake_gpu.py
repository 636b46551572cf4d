"""Whole steps at the paper's size with fake tensors: right shapes and devices, and nothing that waits for the host."""

import json
import os
import subprocess
import sys

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot register a device in Python (2.13 can)",
)
ROPE = {"mixer": "attention", "position": "rope"}
FAULTS = {
    "item": "DataDependentOutputException",
    "copy": "moves data between ['gpu:0', 'cpu']",
    "constant": "moves data between ['gpu:0', 'cpu'",
    "strided": "AssertionError: ('swiglu._product', 'x'",
}


def case(network, model=None, workers=1, fault="", **training):
    """One run of the paper's size."""
    training = {"batch_size": 768, "precision": "bfloat16"} | training
    return [network, {"model": model or {}, "training": training}, workers, fault]


CASES = {
    "triton": case("triton"),
    "triton attention, 4 workers": case("triton", ROPE, 4, micro_batches=2, max_grad_norm=1.0),
    "plain, 8 workers": case("plain", workers=8, halting_cost=0.01),
    "plain, no puzzle tokens": case("plain", {"puzzle_tokens": 0}, optimizer="lion"),
    **{
        f"triton {name}": case("triton", precision=name, optimizer="adamw")
        for name in ("float16", "bfloat16_weights")
    },
    **{f"fault {name}": case("triton", fault=name) for name in FAULTS},
}


@pytest.fixture(scope="module")
def found():
    """What each case launched, or what was wrong with it."""
    command = [sys.executable, "-W", "error", "-m", "tests.training.fake_gpu", json.dumps([*CASES.values()])]
    # as on a GPU: tests of the kernels set the variable for their process
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("fault")])
def test_a_step_stays_on_the_device(name, found):
    assert isinstance(found[name], dict), found[name]
    assert bool(found[name]) == name.startswith("triton")


def test_launches_of_a_step(found):
    """Two steps of the paper's recursion: 21 updates of two blocks forward, the last round's 7 backward."""
    assert found["triton"] == {
        "tokens._forward": 84,
        "swiglu._product": 84,
        "tokens._backward": 28,
    }
    assert "attention._backward" in found["triton attention, 4 workers"]


@pytest.mark.parametrize("name", FAULTS)
def test_what_waits_for_the_host_is_found(name, found):
    assert FAULTS[name] in str(found[f"fault {name}"])
