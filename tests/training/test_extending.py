"""The study, the optimiser and the network in docs/extending.md work as they are printed there."""

import re

import pytest
import torch

from tests.backends.supervision import supervision_step
from tests.conftest import block
from tests.shell import ROOT, python
from trm.model.plain import PlainNetwork
from trm.pipeline.project import open_project
from trm.study.schema import ModelConfig, TrainingConfig
from trm.training.optim import flat


def test_the_printed_modules_pass_the_linter(tmp_path):
    """Whoever copies one runs `make lint` next."""
    titles = re.findall(r'```python title="(.*?)"', (ROOT / "docs/extending.md").read_text())
    for title in titles:
        (tmp_path / title.replace("/", "-")).write_text(block(title))
    for words in (("check",), ("format", "--check")):
        python("-m", "ruff", *words, "--config", ROOT / "pyproject.toml", tmp_path, check=True)
    assert len(titles) >= 5


def test_the_printed_study_is_one(tmp_path, monkeypatch):
    path = tmp_path / "own.yaml"
    path.write_text(block("config/own.yaml"))
    monkeypatch.chdir(ROOT)
    project = open_project({"study": str(path)})
    project.check_figures()
    project.check_sizes()
    assert [point.label for point in project.study.experiment("width").points] == ["d_model=16", "d_model=32"]


def test_the_printed_optimiser_steps_by_the_momentums_sign(printed):
    printed("trm.training.optim", "signum")
    # the line that the page asks for is in the schema's list of names
    training = TrainingConfig(lr=0.5, weight_decay=0.0).model_copy(update={"optimizer": "signum"})
    params, gradient = torch.zeros(3), torch.tensor([2.0, -3.0, 0.0])
    state = flat.moments(training, params)
    rates = flat.optimiser(training).rates(training, torch.tensor(1.0), torch.tensor(training.lr))
    flat.update(training, params, gradient, state, None, rates, 2)
    assert params.tolist() == [-0.5, 0.5, 0.0]
    assert state.v.numel() == 0


def test_the_printed_network_is_the_plain_one_and_names_what_is_not_finite(printed):
    module = printed("trm.model", "checked")
    model = ModelConfig(d_model=16, heads=2, puzzle_tokens=1, h_cycles=1, l_cycles=1)
    kind = module.checked().network
    expected = supervision_step(PlainNetwork, model, torch.float32)
    found = supervision_step(kind, model, torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(expected[0], found[0]))
    assert all(torch.equal(expected[1][name], found[1][name]) for name in expected[1])

    class Broken(kind):
        def prepare(self):
            super().prepare()
            self.weights["head.weight"].data.fill_(torch.inf)

    with pytest.raises(FloatingPointError, match="logits is not finite"):
        supervision_step(Broken, model, torch.float32)
