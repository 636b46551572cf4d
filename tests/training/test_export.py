"""Models for other programs, used as the documents say: ONNX in onnxruntime, the layout of the Hugging Face hub."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from tests.training.conftest import config, same_weights, train
from trm.cli import main
from trm.model import definition
from trm.training.dataset import Dataset
from trm.training.export import OPSET, Step, plain_tensors
from trm.training.outputs import load_weights

DOCS = Path(__file__).parents[2] / "docs"
MODELS = {
    "mlp": {"mixer": "mlp", "layers": 1},
    "attention": {"mixer": "attention", "layers": 1, "position": "rope", "h_cycles": 1, "puzzle_tokens": 0},
}


@pytest.fixture(scope="module", params=MODELS)
def trained(request, dataset_folder, tmp_path_factory):
    """A run of each mixer: its folder, the network, questions."""
    root = tmp_path_factory.mktemp(request.param)
    train(config(MODELS[request.param], {"steps": 2}), dataset_folder, root)
    questions = torch.from_numpy(Dataset(dataset_folder).split("test").inputs[:5])
    return root / "run", definition.load(root / "run/weights.safetensors"), questions


@pytest.mark.full
def test_onnxruntime_computes_the_same_step(trained, tmp_path):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    run, model, questions = trained
    file = tmp_path / "step.onnx"
    assert main(["convert", "to-onnx", str(run), "--out", str(file)]) == 0
    loaded = onnx.load(file)
    onnx.checker.check_model(loaded, full_check=True)
    assert [item.version for item in loaded.opset_import if not item.domain] == [OPSET]
    length, ids = questions.shape[1] + model.arch.puzzle_tokens, torch.zeros(len(questions), dtype=torch.long)
    states = (start.expand(length, len(questions), -1) for start in (model.h_init, model.l_init))
    feeds = dict(zip(("z_H", "z_L", "inputs", "puzzle"), (*states, questions.long(), ids), strict=True))
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found = session.run(None, {item.name: feeds[item.name].numpy() for item in session.get_inputs()})
    for mine, theirs in zip(Step(load_weights(run))(*feeds.values()), found, strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-4, rtol=1e-4)
    answers, halt_logits = runpy.run_path(str(DOCS / "onnx_solve.py"))["solve"](str(file), questions.numpy())
    wanted_answers, wanted_halt = definition.solve(model, questions)
    assert np.array_equal(answers, wanted_answers)
    np.testing.assert_allclose(halt_logits, wanted_halt, atol=1e-4)


def test_without_onnx_there_is_one_sentence(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(["convert", "to-onnx", str(trained[0]), "--out", str(tmp_path / "m.onnx")]) == 2
    assert "onnxscript is not installed: pip install onnx onnxscript" in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()


def test_from_pretrained_reads_the_hub_layout(trained, tmp_path):
    run, model, questions = trained
    assert main(["convert", "to-huggingface", str(run), "--out", str(tmp_path / "four")]) == 0
    assert {path.name for path in (tmp_path / "four").iterdir()} == {
        "model.safetensors", "config.json", "README.md",
    }  # fmt: skip
    card = ModelCard.load(tmp_path / "four/README.md")
    assert card.data.license == "mit"
    assert "# four" in card.text
    assert json.loads((tmp_path / "four/config.json").read_text())["seq_len"] == 16
    words = ["--config", load_weights(run).config.model_dump_json(), "--out", str(tmp_path / "back")]
    assert main(["convert", "from-reference", str(tmp_path / "four/model.safetensors"), *words]) == 0
    assert same_weights(*(plain_tensors(load_weights(folder)) for folder in (run, tmp_path / "back")))
    file = DOCS / "from_pretrained.py"
    assert len(file.read_text().splitlines()) <= 40
    if model.arch.rope:
        return  # the short file is for the MLP mixer
    mine = runpy.run_path(str(file))["TinyRecursiveModel"].from_pretrained(tmp_path / "four")
    answers, halt_logits = mine.solve(questions)
    wanted_answers, wanted_halt = definition.solve(model, questions)
    assert torch.equal(answers, wanted_answers)
    torch.testing.assert_close(halt_logits, wanted_halt, atol=1e-4, rtol=1e-4)


def test_measured_accuracies_are_in_the_metadata(trained, tmp_path):
    run, *_ = trained
    row = {"split": "test", "policy": "fixed", "steps": 4, "restarts": 1}
    row |= {"exact_accuracy": 0.5, "puzzles": 40}
    document = {"dataset": {"name": "d"}, "results": [row, {**row, "split": "train"}]}
    document["fingerprint"] = json.loads((run / "training.json").read_text())["fingerprint"]
    (run / "evaluation-own.json").write_text(json.dumps(document))
    assert main(["convert", "to-huggingface", str(run), "--out", str(tmp_path / "four")]) == 0
    (result,) = ModelCard.load(tmp_path / "four/README.md").data.eval_results
    assert (result.dataset_name, result.metric_value) == ("d", 0.5)
    assert "| d | fixed | 4 | 1 | 50.0 % of 40 |" in (tmp_path / "four/README.md").read_text()
