"""Stretches of a run that end by the clock."""

import json
import time

import pytest
import torch

from tests.training.conftest import after, config, train, trainer
from trm.training.checkpoints.folder import CheckpointFolder, read_checkpoint
from trm.training.interrupt import EXIT_UNFINISHED

RUN = {"steps": 40, "snapshots": 2}


def stretch(run, data, root, steps, name="run", **options):
    """A process of the run whose time is over after `steps` steps."""
    found = trainer(run, data, root, name, stop_after_minutes=5.0, **options)
    found.started = time.monotonic()
    after(found, steps - 1, lambda: setattr(found, "started", found.started - 300))
    assert found.run() == EXIT_UNFINISHED
    return found


def test_a_stretch_ends_whole_and_the_next_goes_on(dataset_folder, tmp_path):
    run = config(training=RUN)
    whole = train(run, dataset_folder, tmp_path / "whole")
    assert stretch(run, dataset_folder, tmp_path, 9).record.done == 9
    assert stretch(run, dataset_folder, tmp_path, 25).record.done == 25
    assert not (tmp_path / "run" / "training.json").exists()
    resumed = train(run, dataset_folder, tmp_path)
    assert torch.equal(resumed.state.params, whole.state.params)


def test_a_format_of_another_version_is_refused(dataset_folder, tmp_path):
    stretch(config(training=RUN), dataset_folder, tmp_path, 9)
    folder = CheckpointFolder(tmp_path / "checkpoints" / "run")
    manifest = json.loads(folder.read(9, "manifest.json"))
    folder.write(9, "manifest.json", json.dumps(manifest | {"format": 3}).encode())
    with pytest.raises(ValueError, match="format 3 is not supported by this version, which reads 1"):
        read_checkpoint(folder, 9)
