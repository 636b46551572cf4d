"""Where a device leaves the choice, the faster implementation is timed, kept and named by the checkpoint."""

import json

import pytest
import torch

from tests.backends.supervision import supervision_step
from tests.training.conftest import config, trainer
from trm.backends.cpu.device import CpuBackend
from trm.backends.cuda import compiled
from trm.errors import UserError
from trm.evaluation.evaluate import inference_network
from trm.model.plain import PlainNetwork
from trm.study.schema import EvaluationConfig, ModelConfig
from trm.training import choice
from trm.training.outputs import load_weights

RUN = config(training={"steps": 4})
NAMES = ("fused", "plain")


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Two candidates on the CPU, and a clock that waiting for the device moves by the seconds set for the network."""
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(CpuBackend, "candidates", NAMES)
    now, seconds, steps = [0.0], dict.fromkeys(NAMES, 1.0), []

    def synchronize(backend):
        now[0] += seconds[backend.network]
        steps.append(backend.network)

    monkeypatch.setattr(CpuBackend, "synchronize", synchronize)
    monkeypatch.setattr(choice, "clock", lambda: now[0])
    return seconds, steps


@pytest.mark.parametrize(("slow", "fast"), [NAMES, NAMES[::-1]])
def test_the_faster_one_is_taken_and_the_verdict_kept(timed, dataset_folder, tmp_path, capsys, slow, fast):
    seconds, steps = timed
    seconds[slow] = 3.0
    first = trainer(RUN, dataset_folder, tmp_path)
    assert first.backend.network == fast
    assert (
        f"network: {fast}, 3.00 times as fast as the slowest (a step takes fused" in capsys.readouterr().out
    )
    assert first.run() == 0
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert (record["network"], record["network_note"]) == (fast, first.backend.network_note)
    seconds[fast] = 9.0
    steps.clear()
    again = trainer(RUN, dataset_folder, tmp_path, "again")
    assert (again.backend.network, steps) == (fast, [])  # not timed again
    other = trainer(config({"layers": 1}, {"steps": 4}), dataset_folder, tmp_path, "other")
    assert other.backend.network == slow  # another shape


def test_a_resumed_run_continues_alike(timed, dataset_folder, tmp_path):
    seconds, _ = timed
    seconds["fused"] = 3.0
    first = trainer(RUN, dataset_folder, tmp_path)
    first.save()
    for verdict in (tmp_path / "cache/networks").iterdir():
        verdict.unlink()
    seconds["plain"] = 9.0
    resumed = trainer(RUN, dataset_folder, tmp_path)
    assert (resumed.backend.network, resumed.backend.network_note) == ("plain", "as in the checkpoint")


def test_a_placement_overrides_it(timed, dataset_folder, tmp_path):
    placed = RUN.model_copy(update={"placement": RUN.placement.model_copy(update={"network": "plain"})})
    assert trainer(placed, dataset_folder, tmp_path).backend.network == "plain"
    wrong = RUN.model_copy(update={"placement": RUN.placement.model_copy(update={"network": "triton"})})
    with pytest.raises(
        UserError, match="placement.network=triton is not for this device: choose any or plain"
    ):
        trainer(wrong, dataset_folder, tmp_path)
    assert timed[1] == []


def test_a_single_candidate_is_not_timed(timed, dataset_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(CpuBackend, "candidates", ("fused",))
    assert trainer(RUN, dataset_folder, tmp_path).backend.network == "fused"
    assert timed[1] == []
    assert "network:" not in capsys.readouterr().out


def test_the_evaluation_takes_the_network_of_the_training(timed, dataset_folder, tmp_path):
    seconds, _ = timed
    seconds["fused"] = 3.0
    assert trainer(RUN, dataset_folder, tmp_path).run() == 0
    trained, backend = load_weights(tmp_path / "run"), CpuBackend()
    assert backend.network == "fused"
    inference_network(trained, EvaluationConfig(), backend)
    assert backend.network == "plain"


def test_one_that_does_not_run_is_not_taken(timed, dataset_folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(CpuBackend, "candidates", ("fused", "triton"))

    def refused(state, originals, backend):
        if backend.network == "triton":
            raise RuntimeError("no compiler")
        return sound(state, originals, backend)

    sound = choice.make_step
    monkeypatch.setattr(choice, "make_step", refused)
    assert trainer(RUN, dataset_folder, tmp_path).backend.network == "fused"
    assert "the network triton does not run here: no compiler" in caplog.text


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch.compile's tracer
@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_the_compiled_network_is_the_plain_one(monkeypatch, mixer):
    monkeypatch.setattr(compiled, "OPTIONS", {"backend": "aot_eager"})
    model = ModelConfig(d_model=16, heads=2, puzzle_tokens=1, h_cycles=2, l_cycles=2, mixer=mixer)
    found, expected = (
        supervision_step(kind, model, torch.float32) for kind in (compiled.CompiledNetwork, PlainNetwork)
    )
    for ours, theirs in zip([*found[0], *found[1].values()], [*expected[0], *expected[1].values()]):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
