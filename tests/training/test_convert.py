import json
import shutil
import subprocess
import sys

import pytest
import torch

from tests.training.conftest import DATA, config, train
from trm.backends.cpu.device import CpuBackend
from trm.cli import main
from trm.errors import UserError
from trm.evaluation.evaluate import inference_network
from trm.model import definition
from trm.study.schema import EvaluationConfig
from trm.training.dataset import Dataset
from trm.training.interchange import from_reference, plain_names, to_reference
from trm.training.outputs import load_weights

NAMES = {
    "mlp": {"L_level.layers.1.mlp_t.gate_up_proj.weight", "L_level.layers.0.mlp.down_proj.weight"},
    "attention": {"L_level.layers.1.self_attn.qkv_proj.weight", "L_level.layers.0.self_attn.o_proj.weight"},
}


PREFIXES = ("", "model.", "_orig_mod.", "_orig_mod.model.inner.", "model._orig_mod.inner.")


@pytest.fixture(scope="module", params=NAMES)
def exported(request, dataset_folder, tmp_path_factory):
    """A run of each mixer, its folder and its public state dict."""
    root = tmp_path_factory.mktemp(request.param)
    run = config({"mixer": request.param}, {"steps": 2})
    train(run, dataset_folder, root)
    assert main(["convert", "to-reference", str(root / "run"), "--out", str(root / "model.pt")]) == 0
    return run, root / "run", torch.load(root / "model.pt", weights_only=True)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_back_whatever_wrapped_the_model(prefix, exported, tmp_path):
    run, folder, state = exported
    assert all(name.startswith("model.inner.") for name in state)
    wrapped = {prefix + name: tensor for name, tensor in plain_names(state).items()}
    torch.save(wrapped, tmp_path / "wrapped.pt")
    back = ("--config", run.model_dump_json(), "--out", str(tmp_path / "back"))
    assert main(["convert", "from-reference", str(tmp_path / "wrapped.pt"), *back]) == 0
    original, found = load_weights(folder), load_weights(tmp_path / "back")
    for name, tensor in original.weights("ema").items():
        assert torch.equal(found.weights("raw")[name], tensor), name
    again = to_reference(found, "raw")
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


ELSEWHERE = """
import sys
import torch
import definition
model = definition.load(sys.argv[1])
assert not any(name.split(".")[0] == "trm" for name in sys.modules)
questions = torch.load(sys.argv[2])
answers, halt_logits = definition.solve(model, questions)
torch.save({"answers": answers, "halt": halt_logits}, "result.pt")
"""


def test_ours_is_used_elsewhere_with_one_python_file(exported, dataset_folder, tmp_path):
    run, folder, _ = exported
    shutil.copy2(definition.__file__, tmp_path / "definition.py")
    shutil.copy2(folder / "weights.safetensors", tmp_path)
    questions = torch.from_numpy(Dataset(dataset_folder).split("test").inputs[:8])
    torch.save(questions, tmp_path / "questions.pt")
    (tmp_path / "use.py").write_text(ELSEWHERE)
    command = [sys.executable, "use.py", "weights.safetensors", "questions.pt"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    found = torch.load(tmp_path / "result.pt")

    net, _ = inference_network(load_weights(folder), EvaluationConfig(), CpuBackend())
    x = net.embed(questions, torch.zeros(8, dtype=torch.int32))
    z_H, z_L = net.start(8, len(x))
    for _ in range(run.model.halt_max_steps):
        z_H, z_L, logits, halt = net.step(z_H, z_L, x)
    assert torch.equal(found["answers"], logits.argmax(-1).t())
    torch.testing.assert_close(found["halt"], halt, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["definition.py", "use.py"]


@pytest.mark.parametrize("mixer", NAMES)
def test_there_and_back(mixer, dataset_folder, tmp_path):
    run = config({"mixer": mixer}, {"steps": 2})
    train(run, dataset_folder, tmp_path)
    assert main(["convert", "to-reference", str(tmp_path / "run"), "--out", str(tmp_path / "model.pt")]) == 0
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    names = set(plain_names(state))
    assert names >= NAMES[mixer] | {
        "embed_tokens.embedding_weight",
        "q_head.bias",
        "H_init",
        "puzzle_emb.weights",
    }
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}
    torch.save(compiled, tmp_path / "compiled.pt")
    text = run.model_dump_json()
    assert (
        main(
            [
                "convert",
                "from-reference",
                str(tmp_path / "compiled.pt"),
                "--config",
                text,
                "--out",
                str(tmp_path / "b"),
            ]
        )
        == 0
    )
    original, back = load_weights(tmp_path / "run"), load_weights(tmp_path / "b")
    for name, tensor in original.weights("ema").items():
        assert torch.equal(back.weights("raw")[name], tensor)
    assert torch.equal(back.tensors["buffers.l_init"], original.tensors["buffers.l_init"])
    assert torch.equal(back.tensors["raw.puzzle.weight"], original.tensors["raw.puzzle.weight"])


def test_what_does_not_fit_is_named(dataset_folder, tmp_path):
    run = config(training={"steps": 1})
    train(run, dataset_folder, tmp_path)
    main(["convert", "to-reference", str(tmp_path / "run"), "--out", str(tmp_path / "model.pt")])
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    with pytest.raises(UserError, match=r"self_attn\.qkv_proj"):
        from_reference(state, config({"mixer": "attention"}), "x")
    with pytest.raises(UserError, match="has shape"):
        from_reference(state, config({"d_model": 32}), "x")
    with pytest.raises(UserError, match="also has extra"):
        from_reference(state | {"extra": torch.zeros(1)}, run, "x")
    (tmp_path / "bad.pt").write_bytes(b"no")
    assert (
        main(
            [
                "convert",
                "from-reference",
                str(tmp_path / "bad.pt"),
                "--config",
                json.dumps({"data": DATA}),
                "--out",
                "y",
            ]
        )
        == 2
    )


def test_a_narrower_network_than_the_public_one_is_not_exported(dataset_folder, tmp_path, capsys):
    train(config({"multiple": 8}, {"steps": 1}), dataset_folder, tmp_path)
    assert main(["convert", "to-reference", str(tmp_path / "run"), "--out", str(tmp_path / "m.pt")]) == 2
    assert "model.multiple=8, but the public implementation rounds" in capsys.readouterr().err
    assert not (tmp_path / "m.pt").exists()
