"""A run that is broken off and gone on with ends as one that never was."""

import json
import signal
import subprocess
import sys

import pytest
import torch

from tests.training.conftest import config, train, trainer
from trm.errors import UserError
from trm.training.checkpoints.folder import CheckpointFolder, load_newest
from trm.training.outputs import load_weights

RUN = {"steps": 20, "snapshots": 2, "micro_batches": 2, "exploration_final": 0.5}


class Killed(Exception):
    """Stands for the power cut."""


def broken_off(run, data, root, step, **options):
    """A trainer that is torn away in the middle of `step`."""
    found = trainer(run, data, root, **options)
    original = found.program

    def program(batch, h_cycles, l_cycles):
        if found.record.done + 1 == step:
            raise Killed
        original(batch, h_cycles, l_cycles)

    found.program = program
    with pytest.raises(Killed):
        found.run()


def metrics(found):
    return [
        {k: v for k, v in row.items() if not k.startswith(("perf", "seconds"))} for row in found.record.rows
    ]


@pytest.mark.parametrize(
    "training",
    [{"precision": name} for name in ("float32", "bfloat16", "float16")] + [{"optimizer": "muon"}],
    ids=str,
)
def test_ends_bit_identical(training, dataset_folder, tmp_path):
    run = config(training=RUN | training)
    whole = train(run, dataset_folder, tmp_path / "whole")
    for step in (3, 11, 18):  # before the first checkpoint, between two, in the snapshot half
        broken_off(run, dataset_folder, tmp_path, step, checkpoint_minutes=1e-6)
    resumed = train(run, dataset_folder, tmp_path, checkpoint_minutes=1e-6)
    assert resumed.record.resumes == 3
    assert resumed.record.cpu_seconds > 0
    for name, tensor in whole.state.shared_tensors().items():
        assert torch.equal(resumed.state.shared_tensors()[name], tensor), name
    carries = (trainer.state.on_host(trainer.backend, carry=True)[1] for trainer in (whole, resumed))
    expected, found = carries
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert metrics(resumed) == metrics(whole)
    ours, theirs = load_weights(tmp_path / "run").tensors, load_weights(tmp_path / "whole" / "run").tensors
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("snapshot2.") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_newest_and_best_are_kept(dataset_folder, tmp_path):
    found = train(config(training=RUN), dataset_folder, tmp_path, checkpoint_minutes=1e-6, keep_checkpoints=3)
    kept = found.saver.folder.steps()
    assert set(kept) == {18, 19, 20} | {found.record.best["step"]}


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damage_missing(path):
    path.unlink()


@pytest.mark.parametrize("name", ["state.safetensors", "carry-0.safetensors", "meta.json", "manifest.json"])
@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_missing])
def test_a_broken_newest_falls_back_to_the_one_before(name, damage, dataset_folder, tmp_path, caplog):
    found = train(config(training={"steps": 3}), dataset_folder, tmp_path, checkpoint_minutes=1e-6)
    folder = found.saver.folder
    damage(folder.folder(3) / name)
    loaded = load_newest(folder)
    assert loaded.step == 2
    assert (name == "manifest.json" and damage is damage_missing) or "falling back" in caplog.text


def test_one_that_cannot_be_read_is_not_taken_for_damaged(dataset_folder, tmp_path):
    """A disk that fails for a moment would cost the training since the checkpoint before."""
    found = train(config(training={"steps": 3}), dataset_folder, tmp_path, checkpoint_minutes=1e-6)
    state = found.saver.folder.folder(3) / "state.safetensors"
    state.unlink()
    state.mkdir()  # an OSError for root as well
    with pytest.raises(UserError, match="cannot be read .*fix the disk"):
        load_newest(found.saver.folder)


def test_an_interrupted_write_is_no_checkpoint(dataset_folder, tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.write(5, "state.safetensors", b"half")
    assert folder.steps() == []
    assert load_newest(folder) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training": {"lr": 2e-3}}, r"config\.training\.lr is 0\.001 there and 0\.002 here"),
        ({"model": {"d_model": 32}}, r"config\.model\.d_model"),
        ({"training": {"precision": "bfloat16"}}, "precision"),
        ({"seed": 4}, r"config\.seed"),
    ],
)
def test_another_runs_checkpoint_is_refused_by_field(changes, field, dataset_folder, tmp_path):
    train(config(training={"steps": 2}), dataset_folder, tmp_path)
    training = {"steps": 2} | changes.pop("training", {})
    with pytest.raises(UserError, match=field):
        trainer(config(training=training, **changes), dataset_folder, tmp_path)


def test_dropped_slots_are_said_and_the_run_goes_on(dataset_folder, tmp_path, caplog):
    run = config(training={"steps": 6})
    broken_off(run, dataset_folder, tmp_path, 4, checkpoint_minutes=1e-6, carry_limit_mb=0)
    assert caplog.text.count("carry_limit_mb") == 1
    train(run, dataset_folder, tmp_path, carry_limit_mb=0)
    assert "all slots take new rows" in caplog.text


def command(run, data, root):
    return [
        *(sys.executable, "-m", "trm", "train", "--config", run.model_dump_json(), "--dataset", str(data)),
        *("--out", str(root / "run"), "--checkpoints", str(root / "checkpoints"), "--threads", "1"),
        *("--runtime", '{"log_every": 5, "checkpoint_minutes": 1e-6}'),
    ]


def start(run, data, root):
    return subprocess.Popen(
        command(run, data, root), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_checkpoint(process, root):
    folder = CheckpointFolder(root / "checkpoints")
    for line in process.stdout:  # a line is printed every few steps
        if folder.steps() and "step" in line and "%" in line:
            return
    pytest.fail(f"the run ended early with {process.wait()}")


def test_killed_and_terminated_for_real(dataset_folder, tmp_path):
    run = config(training={"steps": 150, "batch_size": 8})
    first = start(run, dataset_folder, tmp_path)
    wait_for_checkpoint(first, tmp_path)
    first.kill()
    first.communicate()
    assert not (tmp_path / "run" / "training.json").exists()

    second = start(run, dataset_folder, tmp_path)
    wait_for_checkpoint(second, tmp_path)
    second.send_signal(signal.SIGTERM)
    output, _ = second.communicate()
    assert second.returncode == 143, output
    assert "stopped at step" in output
    saved = CheckpointFolder(tmp_path / "checkpoints").steps()[-1]
    assert f"step-{saved:08d}" in output

    third = subprocess.run(command(run, dataset_folder, tmp_path), capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    whole = train(run, dataset_folder, tmp_path / "whole")
    params = whole.state.layout.views(whole.state.params)
    resumed = load_weights(tmp_path / "run").weights("raw")
    assert all(torch.equal(resumed[name], params[name]) for name in params)
    assert json.loads((tmp_path / "run" / "training.json").read_text())["resumes"] == 2
