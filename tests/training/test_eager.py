"""The loop printed in docs/training.md is the algorithm of the engine."""

import re
from itertools import islice
from pathlib import Path

import pytest

from tests.training.conftest import config, first_losses, trainer
from trm.training.step import transformed

PAGE = Path(__file__).parents[2] / "docs/training.md"


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_the_printed_loop_has_the_losses_of_the_engine(dataset_folder, tmp_path, monkeypatch, mixer):
    monkeypatch.setattr("trm.backends.cpu.device.CpuBackend.implementation", "plain")
    (code,) = re.findall(r'```python title="eager.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert code.count("\n") <= 72
    printed: dict = {}
    exec(code, printed)
    run = config(
        {"mixer": mixer, "l_cycles": 2, "layers": 1},
        {"steps": 24, "lr": 4e-3, "exploration": 0.5, "lr_min_ratio": 0.1},
    )
    expected = first_losses(run, dataset_folder, tmp_path / "engine", 20)
    engine = trainer(run, dataset_folder, tmp_path / "data")

    def batches(step):
        batch = engine.feed.batch(step)
        return *transformed(engine.program.originals, batch), batch.minimum

    losses = islice(printed["train"](run, engine.dataset.puzzles, batches, 20), 20)
    assert list(losses) == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.9 * expected[0]
