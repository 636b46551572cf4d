import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from tests.shell import python
from tests.training.conftest import DATA, config, same_weights, train
from trm.backends.cpu.device import CpuBackend
from trm.cli import main
from trm.errors import UserError
from trm.evaluation.evaluate import inference_network
from trm.model import definition
from trm.study.schema import EvaluationConfig
from trm.training.dataset import Dataset
from trm.training.interchange import from_reference, plain_names, to_reference
from trm.training.outputs import load_weights

PREFIXES = ("", "model.", "_orig_mod.", "_orig_mod.model.inner.", "module.model._orig_mod.inner.", "ema.")
PREFIXES += ("_fsdp_wrapped_module.model._fsdp_wrapped_module.inner.", "ema_model.module.")


def public(run, data, root):
    """The public state dict of a run that is trained now, to `root`/run."""
    train(run, data, root)
    assert main(["convert", "to-reference", str(root / "run"), "--out", str(root / "model.pt")]) == 0
    return torch.load(root / "model.pt", weights_only=True)


@pytest.fixture(scope="module")
def exported(dataset_folder, tmp_path_factory):
    """A run, its folder and its public state dict."""
    root, run = tmp_path_factory.mktemp("exported"), config(training={"steps": 2})
    state = public(run, dataset_folder, root)
    return run, root / "run", state


@pytest.mark.parametrize(
    ("prefix", "key"), [*((prefix, "") for prefix in PREFIXES), ("model.", "state_dict"), ("", "model")]
)
def test_back_whatever_wrapped_the_model(prefix, key, exported, tmp_path):
    run, folder, state = exported
    assert all(name.startswith("model.inner.") for name in state)
    layers = {"L_level.layers.1.mlp_t.gate_up_proj.weight", "L_level.layers.0.mlp.down_proj.weight"}
    assert set(plain_names(state)) >= layers | {"q_head.bias", "H_init", "puzzle_emb.weights"}
    wrapped = {prefix + name: tensor for name, tensor in plain_names(state).items()}
    torch.save({"epoch": 3, key: wrapped} if key else wrapped, tmp_path / "wrapped.pt")
    back = ("--config", run.model_dump_json(), "--out", str(tmp_path / "back"))
    assert main(["convert", "from-reference", str(tmp_path / "wrapped.pt"), *back]) == 0
    original, found = load_weights(folder), load_weights(tmp_path / "back")
    for name, tensor in original.weights("ema").items():
        assert torch.equal(found.weights("raw")[name], tensor), name
    for name in ("buffers.l_init", "raw.puzzle.weight"):
        assert torch.equal(found.tensors[name], original.tensors[name])
    assert same_weights(to_reference(found, "raw"), state)


@pytest.mark.parametrize(
    "keys", [("model", "ema"), ("model_state_dict", "ema_state_dict"), ("state_dict", "state_dict_ema")]
)
def test_a_file_with_weights_and_their_average_is_refused_until_one_is_chosen(
    keys, exported, tmp_path, capsys
):
    run, _, state = exported
    state = plain_names(state)
    average = {name: tensor + 1 for name, tensor in state.items()}
    torch.save(dict(zip(keys, (state, average))), tmp_path / "both.pt")
    words = ["convert", "from-reference", str(tmp_path / "both.pt"), "--config", run.model_dump_json()]
    words += ["--out", str(tmp_path / "back")]
    assert main(words) == 2
    assert "choose with --weights raw or --weights ema" in capsys.readouterr().err
    for kind, wanted in (("raw", state), ("ema", average)):
        assert main([*words, "--weights", kind]) == 0
        found = load_weights(tmp_path / "back").weights("ema")["halt.bias"]
        assert torch.equal(found, wanted["q_head.bias"])
    torch.save({keys[0]: state}, tmp_path / "both.pt")
    assert main([*words, "--weights", "ema"]) == 2
    assert "keeps raw weights alone" in capsys.readouterr().err


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
    for file in (definition.__file__, folder / "weights.safetensors"):
        shutil.copy2(file, tmp_path)
    questions = torch.from_numpy(Dataset(dataset_folder).split("test").inputs[:8])
    torch.save(questions, tmp_path / "questions.pt")
    (tmp_path / "use.py").write_text(ELSEWHERE)
    python("use.py", "weights.safetensors", "questions.pt", cwd=tmp_path, check=True)
    found = torch.load(tmp_path / "result.pt")

    net, _ = inference_network(load_weights(folder), EvaluationConfig(), CpuBackend())
    x = net.embed(questions, torch.zeros(8, dtype=torch.int32))
    z_H, z_L = net.start(8, len(x))
    for _ in range(run.model.halt_max_steps):
        z_H, z_L, logits, halt = net.step(z_H, z_L, x)
    assert torch.equal(found["answers"], logits.argmax(-1).t())
    torch.testing.assert_close(found["halt"], halt, rtol=1e-4, atol=1e-5)


ARCH = {"H_cycles": 2, "L_cycles": 1, "halt_max_steps": 4, "num_heads": 2, "pos_encodings": "rope"}


def test_settings_that_no_tensor_shows_are_read_beside_the_checkpoint(dataset_folder, tmp_path, capsys):
    """With rotary positions read as none, the logits are others."""
    run = config({"mixer": "attention", "position": "rope"}, {"steps": 1})
    state = plain_names(public(run, dataset_folder, tmp_path))
    assert {
        f"L_level.layers.{k}.self_attn.{part}.weight" for k, part in ((1, "qkv_proj"), (0, "o_proj"))
    } <= set(state)

    def convert(**model):
        document = run.model_dump(mode="json")
        document["model"] = {"mixer": "attention", "d_model": 16, "puzzle_tokens": 1, **model}
        given = ["--config", json.dumps(document), "--out", str(tmp_path / "back")]
        return main(["convert", "from-reference", str(tmp_path / "model.pt"), *given])

    capsys.readouterr()
    assert convert() == 0
    assert "assumed as in --config, for no tensor shows them: model.heads=8" in capsys.readouterr().out
    (tmp_path / "all_config.yaml").write_text(json.dumps({"arch": ARCH}))
    assert convert(heads=2) == 0
    back = load_weights(tmp_path / "back")
    assert back.config.model == run.model
    assert same_weights(plain_names(to_reference(back, "raw")), state)
    assert "as in" in capsys.readouterr().out
    assert convert(position="none") == 2
    assert "has pos_encodings rope, but --config has model.position=none" in capsys.readouterr().err
    (tmp_path / "all_config.yaml").write_text("lr: 1")
    assert convert() == 2
    assert "does not hold the public trainer's settings" in capsys.readouterr().err


def test_what_does_not_fit_is_named(exported, tmp_path, capsys):
    state = plain_names(exported[2])
    wide = {"puzzle_emb.weights": torch.zeros(1, 32)}
    for change, other, words in (
        ({}, {"mixer": "attention"}, r"self_attn\.qkv_proj"),
        ({}, {"d_model": 32}, "has shape"),
        ({"extra": torch.zeros(1)}, {}, "also has extra"),
        (wide, {}, r"puzzle_emb\.weights is 32 wide, .* model\.d_model=16"),
        ({f"ema.{name}": tensor for name, tensor in state.items()}, {}, "twice, once as ema"),
    ):
        with pytest.raises(UserError, match=words):
            from_reference(state | change, config(other), "x")
    spoilt = state | {"H_init": torch.full((16,), float("nan"))}
    (tmp_path / "no.pt").write_bytes(b"no")
    torch.save(spoilt, tmp_path / "nan.pt")
    save_file({name: tensor.contiguous() for name, tensor in spoilt.items()}, tmp_path / "nan.safetensors")
    torch.save({"weights": [1]}, tmp_path / "list.pt")
    for name, words in (
        ("no.pt", "write the weights alone"),
        ("nan.pt", "H_init holds NaN or infinity: take an earlier checkpoint"),
        ("nan.safetensors", "H_init holds NaN or infinity: take an earlier checkpoint"),
        ("list.pt", "is not a state dict"),
    ):
        given = ["--config", json.dumps({"data": DATA}), "--out", str(tmp_path / "y")]
        assert main(["convert", "from-reference", str(tmp_path / name), *given]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1


def test_a_narrower_network_than_the_public_one_is_not_exported(dataset_folder, tmp_path, capsys):
    train(config({"multiple": 8}, {"steps": 1}), dataset_folder, tmp_path)
    assert main(["convert", "to-reference", str(tmp_path / "run"), "--out", str(tmp_path / "m.pt")]) == 2
    assert "model.multiple=8, but the public implementation rounds" in capsys.readouterr().err
    assert not (tmp_path / "m.pt").exists()
