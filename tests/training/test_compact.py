"""The compact form of a checkpoint, and stretches of a run that end by the clock."""

import json
import time

import pytest
import torch

from tests.training.conftest import config, train, trainer
from trm.cli import main
from trm.errors import UserError
from trm.study.flops import parameters
from trm.study.schema import ModelConfig
from trm.training.checkpoints.compact import packed, unpacked
from trm.training.checkpoints.export import export
from trm.training.checkpoints.folder import CheckpointFolder, load_newest, read_checkpoint
from trm.training.interrupt import EXIT_UNFINISHED

RUN = {"steps": 40, "snapshots": 2}


def stretch(run, data, root, steps, name="run", **options):
    """A process of the run whose time is over after `steps` steps."""
    found = trainer(run, data, root, name, stop_after_minutes=5.0, **options)
    found.started = time.monotonic()
    program = found.program

    def counted(*args):
        program(*args)
        if found.record.done + 1 == steps:
            found.started -= 300

    found.program = counted
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


def test_goes_on_from_the_compact_form(dataset_folder, tmp_path, caplog):
    run = config(training=RUN)
    before = stretch(run, dataset_folder, tmp_path, 25).state
    source, target = CheckpointFolder(tmp_path / "checkpoints" / "run"), tmp_path / "checkpoints" / "carried"
    arguments = ["checkpoints", "compact", str(source.root), "--to", str(target), "--part-mb", "0.02"]
    assert main(arguments) == 0
    files = sorted(target.glob("step-*/*"))
    assert len(files) > 4
    assert max(path.stat().st_size for path in files if path.name.startswith("compact-")) <= 0.02 * 2**20
    resumed = trainer(run, dataset_folder, tmp_path, "carried")
    assert "slots take new rows" in caplog.text
    assert resumed.record.done == 25
    for name, tensor in before.shared_tensors().items():
        found = resumed.state.shared_tensors()[name]
        expected = tensor.bfloat16().float() if name.startswith("moment") else tensor
        assert torch.equal(found, expected), name
    assert resumed.run() == 0
    assert resumed.record.rows[-1]["step"] == 40


def test_what_cannot_be_exported_or_gone_on_with(dataset_folder, tmp_path):
    run = config(training=RUN)
    empty = CheckpointFolder(tmp_path / "empty")
    with pytest.raises(UserError, match="holds no checkpoint"):
        export(empty, CheckpointFolder(tmp_path / "to"), 64)
    stretch(run, dataset_folder, tmp_path, 9)
    source, target = CheckpointFolder(tmp_path / "checkpoints" / "run"), CheckpointFolder(tmp_path / "to")
    export(source, target, 64)
    with pytest.raises(UserError, match="already holds checkpoints"):
        export(source, target, 64)
    moved = tmp_path / "checkpoints" / "other"
    target.root.rename(moved)
    other = config(training=RUN | {"lr": 2e-3})
    with pytest.raises(UserError, match=r"of another run: config.training.lr is 0.001 there and 0.002 here"):
        trainer(other, dataset_folder, tmp_path, "other")
    part = next(moved.glob("step-*/compact-000"))
    part.write_bytes(part.read_bytes()[:-1])
    assert load_newest(CheckpointFolder(moved)) is None
    with pytest.raises(UserError, match="is damaged"):
        export(CheckpointFolder(moved), CheckpointFolder(tmp_path / "again"), 64)


def test_a_format_of_another_version_is_refused(dataset_folder, tmp_path):
    stretch(config(training=RUN), dataset_folder, tmp_path, 9)
    folder = CheckpointFolder(tmp_path / "checkpoints" / "run")
    manifest = json.loads(folder.read(9, "manifest.json"))
    folder.write(9, "manifest.json", json.dumps(manifest | {"format": 3}).encode())
    with pytest.raises(ValueError, match="format 3 is not supported by this version, which reads 1 and 4"):
        read_checkpoint(folder, 9)


@pytest.mark.parametrize(("mixer", "megabytes"), [("mlp", 49), ("attention", 66)])
def test_size_at_the_papers_model(mixer, megabytes):
    """Random bits where training makes them: moments as wide in scale as Adam's, the average as far off as measured."""
    count = parameters(ModelConfig(mixer=mixer), 81, 11)
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(count, generator=generator) * 0.04
    scales = torch.randn(count // 512 + 1, 1, generator=generator) + torch.randn(512, generator=generator)
    scales = scales.exp2().reshape(-1)[:count] * 1e-5
    state = {
        "params": params,
        "ema": params + 3e-3 * torch.randn(count, generator=generator),
        "moment1": torch.randn(count, generator=generator) * scales,
        "moment2": (torch.randn(4, count, generator=generator) * scales).square().mean(0),
        "step": torch.tensor(3.0),
        "empty": torch.zeros(0),
    }
    data = packed(state)
    assert len(data) < megabytes * 1e6
    back = unpacked(data)
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor.bfloat16() if name.startswith("moment") else tensor), name


def test_an_average_without_its_weights_is_kept_too():
    state = {
        "ema": torch.randn(7),
        "params": torch.randn(8),
        "moment1": torch.ones(3),
        "count": torch.tensor(2**40),
    }
    back = unpacked(packed(state))
    assert torch.equal(back["ema"], state["ema"])
    assert back["moment1"].dtype == torch.bfloat16
    assert back["count"] == 2**40
