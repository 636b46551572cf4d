"""Every field of ModelConfig and TrainingConfig changes the training; every field of RuntimeConfig does not."""

import pytest
import torch
from pydantic import ValidationError

from tests.knobs import another
from tests.training.conftest import config, steps, train, trainer
from trm.backends.cpu.device import CpuBackend
from trm.errors import UserError
from trm.study.schema import ModelConfig, PlacementConfig, RunConfig, RuntimeConfig, TrainingConfig
from trm.training.outputs import load_weights
from trm.training.setup import check_placement

SPECIAL = {
    "model.d_model": 32,
    "model.heads": 4,  # read by attention: see below
    "model.halt_max_steps": 2,
    "model.expansion": 30.0,
    "model.multiple": 8,
    "training.puzzle_weight_decay": 100.0,
    "training.max_grad_norm": 1e-3,
    "training.exploration": 1.0,
    "training.exploration_final": 1.0,
    "training.curriculum": ({"until": 0.5, "h_cycles": 1, "l_cycles": 2},),
}
"""Values that a tiny run feels, where the next best would be refused or lost in rounding."""
ELSEWHERE = {
    "training.micro_batches": "test_train.test_micro_batches_equal_the_whole_batch: same result by definition",
    "training.init_from": "test_init_from_starts_with_the_named_runs_average",
}
FIELDS = [
    name
    for section, schema in (("model", ModelConfig), ("training", TrainingConfig))
    for name in (f"{section}.{field}" for field in schema.model_fields)
    if name not in ELSEWHERE
]
FIELDS.append("seed")


def test_every_placement_is_tried():
    """By test_a_run_is_held_to_its_placement; average: test_workers."""
    assert set(PlacementConfig.model_fields) == {"backend", "workers", "network", "average"}


def outcome(run, data, root, name, weights=None):
    """The tensors that a run leaves behind, but for those of a shape that the knob may change."""
    found = trainer(run, data, root, name, initial=weights)
    # a model that already believes in its answers: halting then matters within a few steps
    found.state.layout.views(found.state.params)["halt.bias"].fill_(2.0)
    found.run()
    return load_weights(root / name).tensors


@pytest.fixture(scope="module")
def base(dataset_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("base")
    mixers = ("mlp", "attention")
    return {mixer: outcome(config({"mixer": mixer}), dataset_folder, root, mixer) for mixer in mixers}


@pytest.mark.parametrize("name", FIELDS)
def test_each_knob_changes_the_weights(name, base, dataset_folder, tmp_path):
    section, _, field = name.rpartition(".")
    mixer = "attention" if name == "model.heads" else "mlp"
    document = config({"mixer": mixer}).model_dump()
    known = getattr(config(), section) if section else config()
    value = another(type(known).model_fields[field], getattr(known, field))
    (document[section] if section else document)[field] = SPECIAL.get(name, value)
    ours, theirs = outcome(RunConfig(**document), dataset_folder, tmp_path, "run"), base[mixer]
    assert ours.keys() != theirs.keys() or any(
        ours[key].shape != theirs[key].shape or not torch.equal(ours[key], theirs[key]) for key in theirs
    )


RUNTIME = {
    "log_every": 3,
    "evals": 1,
    "checkpoint_minutes": 1e-6,
    "tensorboard": True,
    "profile_steps": "2:3",
}


def test_bookkeeping_changes_no_result(dataset_folder, tmp_path):
    assert set(RUNTIME) | {"wandb", "stop_after_minutes"} == set(RuntimeConfig.model_fields)
    plain = train(config(), dataset_folder, tmp_path, "plain")
    other = train(config(), dataset_folder, tmp_path, "other", **RUNTIME)
    assert torch.equal(plain.state.params, other.state.params)
    assert torch.equal(plain.state.ema, other.state.ema)
    assert list((tmp_path / "checkpoints" / "other" / "tensorboard").glob("events*"))
    assert '"supervision step"' in (tmp_path / "checkpoints/other/profile-0.json").read_text()


def test_init_from_starts_with_the_named_runs_average(dataset_folder, tmp_path):
    train(config(), dataset_folder, tmp_path, "first")
    weights = load_weights(tmp_path / "first").weights("ema")
    run = config(training={"init_from": "first"})
    second = trainer(run, dataset_folder, tmp_path, "second", initial=weights)
    views = second.state.layout.views(second.state.params)
    assert all(torch.equal(views[name], weights[name]) for name in views)


def placed(**placement):
    return config().model_copy(update={"placement": PlacementConfig(**placement)})


def test_a_run_is_held_to_its_placement():
    backend, other = CpuBackend(), CpuBackend()
    check_placement(placed(backend="cpu", workers=1, network="plain"), backend)
    assert backend.implementation == "plain"
    other.name, host = "cuda", "drawn on the host, not on cuda: train this run on a CPU"
    for run, there, words in (
        (placed(backend="cuda"), backend, "placement.backend is cuda, but the job runs on cpu"),
        (placed(workers=2), backend, "but the job has 1: start it with trm train --workers 2"),
        (config(training={"start_noise": 0.1}), other, host),
        (config(training={"step_noise": 0.1}), other, host),
    ):
        with pytest.raises(UserError, match=words):
            check_placement(run, there)


def test_gradients_are_clipped_to_the_norm(dataset_folder, tmp_path):
    found = trainer(config(training={"max_grad_norm": 1e-3}), dataset_folder, tmp_path)
    steps(found, 1, 1)
    assert found.state.grads.norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("network", ["any", "plain"])
def test_a_stage_of_fewer_supervision_steps_ends_rows_sooner(dataset_folder, tmp_path, network):
    stages = ({"until": 0.5, "halt_max_steps": 1}, {"until": 0.75, "halt_max_steps": 2})
    training = {"curriculum": stages, "steps": 16, "exploration": 1.0}
    run = config(training=training).model_copy(update={"placement": PlacementConfig(network=network)})
    found, halted = trainer(run, dataset_folder, tmp_path), []
    for step in range(1, 17):
        steps(found, step, step)
        carry = found.state.carries[0]
        halted.append(set(carry.steps[carry.halted > 0].tolist()))
    assert halted[:8] == [{1}] * 8
    assert set.union(*halted[8:12]) == {2}
    assert 2 < max(set.union(*halted[12:])) <= 4
    assert found.feed.batch(1).minimum.max() == 0
    assert found.feed.batch(10).minimum.max() == 2


def test_no_stage_has_more_supervision_steps_than_the_model():
    with pytest.raises(ValidationError, match=r"above model.halt_max_steps=4, the most of a run"):
        config(training={"curriculum": [{"until": 0.5, "halt_max_steps": 8}]})


def test_exploration_delays_halting_and_anneals(dataset_folder, tmp_path):
    run = config({"halt_max_steps": 8}, {"exploration": 1.0, "exploration_final": 0.0, "steps": 11})
    feed = trainer(run, dataset_folder, tmp_path).feed
    explored = [(feed.batch(step).minimum > 0).float().mean().item() for step in range(1, 12)]
    assert explored[0] == 1.0
    assert explored[-1] == 0.0
    assert 0.2 < explored[5] < 0.8
    first = feed.batch(1).minimum
    assert first.min() >= 2
    assert first.max() <= 8


def test_float16_survives_an_overflow(dataset_folder, tmp_path):
    found = trainer(config(training={"precision": "float16"}), dataset_folder, tmp_path)
    found.state.scale[0] = 2.0**60
    before = found.state.params.clone()
    steps(found, 1, 1)
    assert torch.equal(found.state.params, before)
    assert (int(found.state.step), int(found.state.ema_steps)) == (1, 0)  # it does not enter the average
    assert found.state.scale[0] == 2.0**59
    found._check_finite(found._fetch()[0], 0.0)
    found.state.scale[0] = 1.0
    steps(found, 2, 2)
    assert not torch.equal(found.state.params, before)
