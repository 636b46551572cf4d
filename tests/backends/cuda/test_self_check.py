"""The kernels' check at the start of a process: broken on purpose, through the interpreter."""

import json

import pytest
import torch

from tests.training.conftest import config, dataset_folder, trainer  # noqa: F401 (a fixture)
from trm.backends.cpu.device import CpuBackend
from trm.backends.cuda import attention, norm, swiglu, tokens
from trm.backends.cuda.self_check import check_kernels
from trm.study.schema import ModelConfig

MODEL = ModelConfig(d_model=32, heads=1, puzzle_tokens=1, expansion=1.0, multiple=64)
ATTENTION = MODEL.model_copy(update={"mixer": "attention", "position": "rope"})


def checked(model, backend=None):
    """A backend after the check."""
    backend = backend or CpuBackend()
    backend.network = "triton"
    check_kernels(backend, model, 9, torch.float32)
    return backend


@pytest.mark.parametrize("model", [MODEL, ATTENTION], ids=["mlp", "attention"])
def test_sound_kernels_are_used(model):
    backend = checked(model)
    assert (backend.network, backend.network_note) == ("triton", "")


def spoil(tensor):
    """One wrong column."""
    tensor.view(-1, tensor.shape[-1])[:, -1] += 1.0


BROKEN = {
    "norm": (norm, "residual_norm", lambda args: args[2]),
    "norm backward": (norm, "norm_backward", lambda args: args[3]),
    "gate backward": (norm, "gate_backward", lambda args: args[0]),
    "swiglu product": (swiglu, "product", lambda args: args[2]),
    "token mixing 64": (tokens, "mix", lambda args: args[3]),
    "token mixing backward": (tokens, "mix_backward", lambda args: args[7]),
    "attention rope=True": (attention, "attend", lambda args: args[3]),
    "attention backward rope=True": (attention, "attend_backward", lambda args: args[0]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_kernel_is_found(name, monkeypatch, caplog):
    module, function, output = BROKEN[name]
    sound = getattr(module, function)

    def broken(*args):
        result = sound(*args)
        spoil(output(args))
        return result

    monkeypatch.setattr(module, function, broken)
    backend = checked(ATTENTION if module is attention else MODEL)
    assert backend.network == "plain"
    assert backend.network_note.startswith(f"the Triton kernels are not used: {name}")
    assert "(limit" in backend.network_note
    assert [backend.network_note in message for message in caplog.messages] == [True]


def test_a_kernel_that_does_not_run_is_one_sentence(monkeypatch, caplog):
    def refused(*args):
        raise RuntimeError("out of resource: shared memory, Required: 147456\nReducing block sizes may help")

    monkeypatch.setattr(swiglu, "product", refused)
    backend = checked(MODEL)
    assert "one fails on this device (out of resource: shared memory, Required: 147456)" in caplog.text
    assert backend.network == "plain"


def test_all_workers_decide_alike(monkeypatch):
    """Here they are sound, and on worker 1 not."""
    backend = CpuBackend()
    backend.gather = lambda vector: [vector, torch.ones_like(vector)]
    checked(MODEL, backend)
    assert backend.network == "plain"
    assert "the check failed on worker 1" in backend.network_note


def test_other_networks_are_not_checked(monkeypatch):
    monkeypatch.setattr("trm.backends.cuda.self_check._problem", lambda *args: pytest.fail("checked"))
    check_kernels(CpuBackend(), MODEL, 9, torch.float32)


@pytest.mark.parametrize("asked", [False, True])
def test_a_model_that_they_do_not_compute_is_compiled(asked, caplog):
    """Of half a head of 20 channels. Warned of only where the kernels were asked for."""
    backend = CpuBackend()
    backend.candidates = () if asked else ("triton", "compiled")
    checked(ATTENTION.model_copy(update={"d_model": 40}), backend)
    assert (backend.network, backend.candidates) == ("compiled", ())
    assert backend.network_note == (
        "the Triton kernels do not compute this model in float32: torch.compile does"
    )
    assert (backend.network_note in caplog.text) is asked


def test_the_runs_record_says_so(dataset_folder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(CpuBackend, "network", "triton")
    monkeypatch.setattr("trm.backends.cuda.self_check._problem", lambda *args: "gate is wrong")
    assert trainer(config(training={"steps": 2}), dataset_folder, tmp_path, evals=1).run() == 0
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert record["network"] == "plain"
    assert record["network_note"] == (
        "the Triton kernels are not used: gate is wrong; PyTorch computes the network"
    )
