"""A run that is broken off and gone on with ends as one that never was."""

import json
import time

import pytest
import torch

from tests.damage import DAMAGES, damage
from tests.training.conftest import after, config, same_weights, train, trainer
from trm.backends.cpu.device import CpuBackend
from trm.errors import UserError
from trm.model.parameters import truncated_normal
from trm.study.tasks import Sizes
from trm.training.checkpoints import saving
from trm.training.checkpoints.folder import CheckpointFolder, load_newest, read_checkpoint
from trm.training.interrupt import EXIT_UNFINISHED
from trm.training.outputs import load_weights
from trm.training.state import TrainState

RUN = {"steps": 20, "snapshots": 2, "micro_batches": 2, "exploration_final": 0.5}


class Killed(Exception):
    """Stands for the power cut."""


def broken_off(run, data, root, step, **options):
    """A trainer that is torn away in the middle of `step`."""

    def kill():
        raise Killed

    with pytest.raises(Killed):
        after(trainer(run, data, root, **options), step - 1, kill).run()


def metrics(found):
    """Its history but for times and speeds."""
    timed = ("perf", "seconds")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in found.record.rows]


@pytest.mark.parametrize(
    "training",
    [{"precision": name} for name in ("float32", "bfloat16", "float16")] + [{"optimizer": "muon"}],
    ids=str,
)
def test_ends_bit_identical(training, dataset_folder, tmp_path):
    """And keeps the newest checkpoints and the best."""
    run = config(training=RUN | training)
    whole = train(run, dataset_folder, tmp_path / "whole")
    for step in (3, 11):  # before the first checkpoint, and between two
        broken_off(run, dataset_folder, tmp_path, step, checkpoint_minutes=1e-6)
    # in the snapshot half, a process whose time is over
    stopped = trainer(run, dataset_folder, tmp_path, stop_after_minutes=5.0, checkpoint_minutes=1e-6)
    stopped.started = time.monotonic()
    after(stopped, 17, lambda: setattr(stopped, "started", stopped.started - 300))
    assert (stopped.run(), stopped.record.done) == (EXIT_UNFINISHED, 18)
    assert not (tmp_path / "run/training.json").exists()
    resumed = train(run, dataset_folder, tmp_path, checkpoint_minutes=1e-6)
    assert resumed.record.resumes == 3
    assert set(resumed.saver.folder.steps()) == {16, 17, 18, 19, 20} | {resumed.record.best["step"]}
    assert resumed.record.cpu_seconds > 0
    for name, tensor in whole.state.shared_tensors().items():
        assert torch.equal(resumed.state.shared_tensors()[name], tensor), name
    carries = (trainer.state.on_host(trainer.backend, carry=True)[1] for trainer in (whole, resumed))
    assert same_weights(*carries)
    assert metrics(resumed) == metrics(whole)
    ours, theirs = load_weights(tmp_path / "run").tensors, load_weights(tmp_path / "whole" / "run").tensors
    assert any(name.startswith("snapshot2.") for name in ours)
    assert same_weights(ours, theirs)


@pytest.mark.parametrize(
    ("name", "how"),
    [("state.safetensors", how) for how in DAMAGES]
    + [("carry-0.safetensors", "missing"), ("meta.json", "flipped")]
    + [("manifest.json", how) for how in DAMAGES],
)
def test_a_broken_newest_costs_one_step_and_changes_nothing(name, how, dataset_folder, tmp_path, caplog):
    run = config(training={"steps": 4})
    whole = train(run, dataset_folder, tmp_path / "whole")
    broken_off(run, dataset_folder, tmp_path, 4, checkpoint_minutes=1e-6)
    damage(CheckpointFolder(tmp_path / "checkpoints/run").folder(3) / name, how)
    again = trainer(run, dataset_folder, tmp_path)
    assert again.record.done == 2
    assert (name, how) == ("manifest.json", "missing") or "falling back" in caplog.text
    assert again.run() == 0
    assert torch.equal(again.state.params, whole.state.params)


def test_one_that_cannot_be_read_is_not_taken_for_damaged(dataset_folder, tmp_path):
    """A disk that fails for a moment would cost the training since the checkpoint before."""
    found = train(config(training={"steps": 3}), dataset_folder, tmp_path, checkpoint_minutes=1e-6)
    state = found.saver.folder.folder(3) / "state.safetensors"
    state.unlink()
    state.mkdir()  # an OSError for root as well
    with pytest.raises(UserError, match="cannot be read .*fix the disk"):
        load_newest(found.saver.folder)


def test_what_a_kill_leaves_half_written_is_removed(dataset_folder, tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints/run")
    folder.write(1, "state.safetensors", b"half")  # no manifest followed
    for name in (".history.csv.1.tmp", ".restore-step-1/part"):
        folder.write_extra(name, b"half")
    folder.tidy()
    assert [path.name for path in folder.root.iterdir()] == ["step-00000001"]
    found = train(config(training={"steps": 3}), dataset_folder, tmp_path)
    assert found.saver.folder.started() == found.saver.folder.steps() == [2, 3]


def test_a_format_of_another_version_is_refused(dataset_folder, tmp_path):
    folder = train(config(training={"steps": 2}), dataset_folder, tmp_path).saver.folder
    manifest = json.loads(folder.read(2, "manifest.json"))
    folder.write(2, "manifest.json", json.dumps(manifest | {"format": 3}).encode())
    with pytest.raises(ValueError, match="format 3 is not supported by this version, which reads 1"):
        read_checkpoint(folder, 2)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training": {"lr": 2e-3}}, r"config\.training\.lr is 0\.001 there and 0\.002 here"),
        ({"model": {"d_model": 32}}, r"config\.model\.d_model"),
        ({"training": {"precision": "bfloat16"}}, "precision"),
        ({"seed": 4}, r"config\.seed"),
        ({"data": {"hints": [0, 2]}}, r"data\.hints is \[0, 0\] there and \[0, 2\] here"),
    ],
)
def test_another_runs_checkpoint_is_refused_by_field(changes, field, dataset_folder, tmp_path):
    train(config(training={"steps": 2}), dataset_folder, tmp_path)
    training = {"steps": 2} | changes.pop("training", {})
    with pytest.raises(UserError, match=field):
        trainer(config(training=training, **changes), dataset_folder, tmp_path)


def test_dropped_slots_are_said_and_the_run_goes_on(dataset_folder, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(saving, "CARRY_LIMIT", 0)
    run = config(training={"steps": 6})
    broken_off(run, dataset_folder, tmp_path, 4, checkpoint_minutes=1e-6)
    assert caplog.text.count("they are not saved") == 1
    train(run, dataset_folder, tmp_path)
    assert "all slots take new rows" in caplog.text


class Apart(CpuBackend):
    """A CPU whose buffers are a tensor for each parameter, as XLA's are."""

    views = False


def test_a_checkpoint_does_not_tell_how_the_parameters_are_stored():
    run, backends = config(), (CpuBackend(), Apart())
    whole, apart = (TrainState(run, Sizes(16, 6, 1, 0), b.precision("float32"), b) for b in backends)
    for number, buffer in enumerate((whole.params, *whole.moments, whole.ema)):
        for name, view in whole.layout.views(buffer).items():
            view.copy_(truncated_normal(view.shape, 1.0, number, name))
    saved, _ = whole.on_host(backends[0], carry=False)
    assert len(apart.params) == len(apart.layout.shapes)
    apart.load_shared(saved, backends[1])
    found, _ = apart.on_host(backends[1], carry=False)
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())
