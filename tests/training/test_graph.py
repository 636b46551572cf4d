"""The captured step's logic, with calls that replay by calling again: what CUDA adds is only how they are recorded."""

import pytest
import torch

from tests.training.conftest import config, train, trainer
from trm.devices import cuda
from trm.devices.cuda import WARM_UP_STEPS, GraphedStep

RUN = {"steps": 9, "curriculum": [{"until": 0.5, "h_cycles": 1, "l_cycles": 1}]}


def graphed(run, data, root, capture):
    """The run through GraphedStep."""
    found = trainer(run, data, root, "graphed")
    found.program = GraphedStep(found.step, capture)
    assert found.run() == 0
    return found.state


def equal(found, expected):
    return all(torch.equal(found.shared_tensors()[n], t) for n, t in expected.shared_tensors().items())


def test_replays_are_steps(dataset_folder, tmp_path):
    """Every batch counts once, for each stage of the curriculum, through capture and self-check."""
    run, recorded = config(training=RUN), []

    def capture(call):
        recorded.append(call)
        return call

    expected = train(run, dataset_folder, tmp_path, "plain").state
    assert equal(graphed(run, dataset_folder, tmp_path, capture), expected)
    assert len(recorded) == 2


def failing(call):
    raise RuntimeError("operation not permitted when stream is capturing\nsecond line")


def wrong(call):
    def twice():
        call()
        call()

    return twice


@pytest.mark.parametrize(
    ("capture", "sentence"),
    [
        (failing, "capture failed (operation not permitted"),
        (wrong, "a replay changes the state by other values"),
    ],
)
def test_what_cannot_be_trusted_runs_uncaptured(capture, sentence, dataset_folder, tmp_path, caplog):
    run = config(training=RUN)
    expected = train(run, dataset_folder, tmp_path, "plain").state
    assert equal(graphed(run, dataset_folder, tmp_path, capture), expected)
    assert sum(sentence in message for message in caplog.messages) == 1
    assert "second line" not in caplog.text


def test_warm_up_comes_first(dataset_folder, tmp_path):
    calls = []
    run = config(training={"steps": WARM_UP_STEPS})
    graphed(run, dataset_folder, tmp_path, lambda call: calls.append(call) or call)
    assert not calls


def test_network_is_chosen(monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: True)
    assert cuda.chosen_network((9, 0)) == "triton"
    assert cuda.chosen_network((7, 5)) == "fused"
    monkeypatch.setenv("TRM_TRITON", "0")
    assert cuda.chosen_network((9, 0)) == "fused"
    monkeypatch.delenv("TRM_TRITON")
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert cuda.chosen_network((9, 0)) == "fused"
