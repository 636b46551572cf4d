"""examples/train_simple.py, the algorithm on one page, is the algorithm of the engine."""

import json
from itertools import islice

import pytest
import torch

from examples import train_simple
from tests.training.conftest import config, first_losses, trainer
from tests.training.puzzles import write_dataset
from trm.model.parameters import initial_states, initial_weights
from trm.study.flops import parameter_shapes
from trm.training.outputs import load_weights
from trm.training.step import transformed


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_it_has_the_losses_of_the_engine(dataset_folder, tmp_path, monkeypatch, mixer):
    monkeypatch.setattr("trm.backends.cpu.device.CpuBackend.implementation", "plain")
    run = config(
        {"mixer": mixer, "l_cycles": 2, "layers": 1},
        {"steps": 24, "lr": 4e-3, "exploration": 0.5, "lr_min_ratio": 0.1},
    )
    expected = first_losses(run, dataset_folder, tmp_path / "engine", 20)
    engine = trainer(run, dataset_folder, tmp_path / "data")
    sizes = engine.dataset.puzzles
    weights = initial_weights(run.model, sizes.seq_len, sizes.vocab, run.seed)
    starts = initial_states(run.model, run.seed, torch.float32).values()

    fed = (engine.feed.batch(step) for step in range(1, 21))
    batches = ((*transformed(engine.program.originals, batch), batch.minimum) for batch in fed)
    steps = train_simple.train(run.model, run.training, weights, [*starts], sizes.num_ids, batches)
    assert [loss for loss, *_ in islice(steps, 20)] == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.9 * expected[0]


def test_it_learns_and_writes_the_file_of_a_run(tmp_path, monkeypatch, capsys):
    data, out = write_dataset(tmp_path / "small", 120, 24, 40), tmp_path / "weights.safetensors"
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["config"] = {"source": "generate", "box_rows": 2, "box_cols": 2}
    (data / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(train_simple.TRAINING, "steps", 200)
    monkeypatch.setattr(train_simple.MODEL, "d_model", 16)
    train_simple.main(data, out)
    first, last = (float(line.split()[3]) for line in capsys.readouterr().out.splitlines())
    assert last < 0.9 * first
    found = load_weights(out)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.weights("ema").items()}
    assert shapes == parameter_shapes(found.config.model, 16, 6)
