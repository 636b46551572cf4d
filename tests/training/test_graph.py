"""The captured step: its halves recorded on the CPU as CUDA would record them."""

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from tests.backends.supervision import supervision_step
from tests.training.conftest import config, same_weights, train, trainer
from tests.training.recording import capture
from trm.backends.cuda import compiled
from trm.backends.cuda import device as cuda
from trm.model.plain import PlainNetwork
from trm.study.schema import ModelConfig
from trm.study.stages import Recursion
from trm.training.graphed import WARM_UP_STEPS, GraphedStep

RUN = {"steps": 9, "curriculum": [{"until": 0.5, "h_cycles": 1, "l_cycles": 1}]}


@pytest.fixture(autouse=True)
def plain_network(monkeypatch):
    """Its operations all go through torch, where they can be recorded."""
    monkeypatch.setattr("trm.backends.cpu.device.CpuBackend.implementation", "plain")


def graphed(run, data, root, capture):
    """The tensors of the run through GraphedStep."""
    found = trainer(run, data, root, "graphed")
    found.program = GraphedStep(found.state, found.program.originals, found.backend, capture)
    assert found.run() == 0
    return found.state.shared_tensors()


@pytest.mark.parametrize(
    "training", [{}, {"micro_batches": 2, "max_grad_norm": 0.1, "exploration": 0.3}], ids=["", "more"]
)
def test_replays_are_steps(training, dataset_folder, tmp_path, monkeypatch):
    """Every batch counts once, for each stage of the curriculum, through capture and self-check; the sum over workers
    is between the halves."""
    run, captured = config(training=RUN | training), []
    monkeypatch.setattr("trm.backends.cpu.device.CpuBackend.all_reduce", lambda backend, flat: flat.mul_(2))

    def counted(*calls):
        captured.append(calls)
        return capture(*calls)

    expected = train(run, dataset_folder, tmp_path, "plain").state.shared_tensors()
    assert same_weights(graphed(run, dataset_folder, tmp_path, counted), expected)
    assert len(captured) == 2


def failing(gradients, update):
    raise RuntimeError("operation not permitted when stream is capturing\nsecond line")


def doubled_update(gradients, update):
    return gradients, lambda: (update(), gradients(), update())


def doubled_gradients(gradients, update):
    def twice():
        gradients()
        (reduce,) = update.__self__.state.reduced
        reduce.add_(reduce.clone())

    return twice, update


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (failing, "capture failed (operation not permitted"),
        (doubled_update, "a replay computes other values"),
        (doubled_gradients, "a replay computes other values (relative difference 1.0e+00)"),
    ],
)
def test_what_cannot_be_trusted_runs_uncaptured(broken, sentence, dataset_folder, tmp_path, caplog):
    run = config(training=RUN)
    expected = train(run, dataset_folder, tmp_path, "plain").state.shared_tensors()
    assert same_weights(graphed(run, dataset_folder, tmp_path, broken), expected)
    assert sum(sentence in message for message in caplog.messages) == 1
    assert "second line" not in caplog.text


def test_the_hook_runs_once_a_step_between_the_halves(dataset_folder, tmp_path):
    """It is where a stop request enters the vector that the workers sum."""
    found, order = trainer(config(training=RUN), dataset_folder, tmp_path), []
    places = found.state, found.program.originals, found.backend
    step = GraphedStep(*places, lambda first, second: (first, second))
    for name in ("gradients", "exchange", "update"):
        monkey = getattr(step, name)
        setattr(step, name, lambda *a, call=monkey, name=name: (order.append(name), call(*a))[1])
    step.before_update = lambda: order.append("hook")
    for number in range(1, WARM_UP_STEPS + 3):
        step(found.feed.batch(number), Recursion(2, 1, 4))
    one, captured = ["gradients", "exchange", "hook", "update"], ["gradients", "update"]
    assert order == one * (WARM_UP_STEPS + 1) + captured + one


@pytest.mark.parametrize(
    ("capability", "triton", "expected"),
    [((9, 0), True, "compiled"), ((7, 5), True, "plain"), ((9, 0), None, "plain")],
)
def test_a_gpu_compiles_the_network_where_it_can(monkeypatch, capability, triton, expected):
    monkeypatch.setattr(cuda, "find_spec", lambda name: triton)
    assert cuda.implementation(capability) == expected


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch.compile's tracer
@pytest.mark.parametrize("mixer", [{"mixer": "mlp"}, {"mixer": "attention", "position": "rope"}])
def test_the_compiled_network_is_the_plain_one(monkeypatch, mixer):
    calls: list[str] = []

    def record(graph, inputs):
        calls.extend(str(node.target) for node in graph.graph.nodes if node.op != "placeholder")
        return aot_eager(graph, inputs)

    monkeypatch.setattr(compiled, "OPTIONS", {"backend": record})
    model = ModelConfig(d_model=16, heads=2, layers=1, puzzle_tokens=1, h_cycles=2, l_cycles=1, **mixer)
    both = (supervision_step(kind, model, torch.float32) for kind in (compiled.CompiledNetwork, PlainNetwork))
    for ours, theirs in zip(*([*outputs, *grads.values()] for outputs, grads, _ in both), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    # rotary embeddings come as tables: a compiler would compute a cosine for every element
    assert "cos" not in " ".join(calls)
