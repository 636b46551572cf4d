import json

import pytest
import torch

from tests.engine.conftest import DATA, config, train
from trm.cli import main
from trm.engine.interchange import from_reference, plain_names
from trm.engine.outputs import load_weights
from trm.errors import UserError

NAMES = {
    "mlp": {"L_level.layers.1.mlp_t.gate_up_proj.weight", "L_level.layers.0.mlp.down_proj.weight"},
    "attention": {"L_level.layers.1.self_attn.qkv_proj.weight", "L_level.layers.0.self_attn.o_proj.weight"},
}


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
    with pytest.raises(UserError, match="also holds extra"):
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
