"""Conversion to and from state dicts of the public implementation (October 2025, both variants)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.fingerprint import RECIPE_VERSION, run_fingerprint
from trm.study.flops import parameter_shapes
from trm.study.schema import RunConfig
from trm.training.outputs import PUZZLE, TrainedModel, pack_weights

PREFIXES = ("_orig_mod.", "model.", "inner.")
STATES = {"h_init": "H_init", "l_init": "L_init"}
PUZZLE_TABLE = "puzzle_emb.weights"


def reference_name(name: str) -> str:
    """The public name of one of our parameters, without prefixes."""
    names = {
        "embed.weight": "embed_tokens.embedding_weight",
        "position.weight": "embed_pos.embedding_weight",
        "head.weight": "lm_head.weight",
        "halt.weight": "q_head.weight",
        "halt.bias": "q_head.bias",
    }
    if name in names:
        return names[name]
    _, layer, part, matrix = name.split(".")
    module = {"token_mlp": "mlp_t", "attention": "self_attn", "channel_mlp": "mlp"}[part]
    linear = {"gate_up": "gate_up_proj", "down": "down_proj", "qkv": "qkv_proj", "out": "o_proj"}[matrix]
    return f"L_level.layers.{layer}.{module}.{linear}.weight"


def plain_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict without the prefixes of torch.compile and wrappers."""
    plain = {}
    for name, tensor in state.items():
        while name.startswith(PREFIXES):
            name = name.split(".", 1)[1]
        plain[name] = tensor
    return plain


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a torch or safetensors file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read as a state dict: {error}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} is not a state dict, a mapping from names to tensors")
    return state


def from_reference(
    state: dict[str, Tensor], config: RunConfig, run: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Convert a public state dict to the tensors and metadata of weights.safetensors; `config` describes the model.

    Raises:
        UserError: names the first tensor that is missing, unexpected, or has another shape.
    """
    plain, sizes = plain_names(state), shape(config.data)
    weights = {}
    for name, expected in parameter_shapes(config.model, sizes.seq_len, sizes.vocab_size).items():
        public = reference_name(name)
        if public not in plain:
            raise UserError(
                f"the checkpoint has no {public}: is its variant model.mixer={config.model.mixer}?"
            )
        if tuple(plain[public].shape) != expected:
            raise UserError(
                f"the checkpoint's {public} has shape {tuple(plain[public].shape)}, but this config's has {expected}"
            )
        weights[name] = plain.pop(public).float()
    missing = [public for public in STATES.values() if public not in plain]
    if missing:
        raise UserError(f"the checkpoint has no {missing[0]}: the state dict is incomplete")
    buffers = {ours: plain.pop(public) for ours, public in STATES.items()}
    table = plain.pop(PUZZLE_TABLE, None)
    plain = {
        name: t for name, t in plain.items() if not name.startswith(("puzzle_emb.local_", "rotary_emb."))
    }
    if plain:
        raise UserError(
            f"the checkpoint also has {sorted(plain)[0]}, which this config's model does not have"
        )
    meta = {
        "run": run,
        "fingerprint": run_fingerprint(config),
        "recipe_version": RECIPE_VERSION,
        "precision": "bfloat16" if config.training.precision == "auto" else config.training.precision,
        "seq_len": sizes.seq_len,
        "vocab": sizes.vocab_size,
        "num_ids": 1 if table is None else len(table),
        "ignore": 0,
        "source": "reference",
    }
    # a public checkpoint has one set of weights: use it for both raw and EMA
    return pack_weights(weights, weights, buffers, None if table is None else table.float(), {}), meta


def to_reference(trained: TrainedModel, kind: str) -> dict[str, Tensor]:
    """Convert a run's `ema` or `raw` weights to a public state dict.

    Raises:
        UserError: the public implementation would build a model with other sizes.
    """
    model, data = trained.config.model, shape(trained.config.data)
    public, sizes = model.model_copy(update={"multiple": 256}), (data.seq_len, data.vocab_size)
    if parameter_shapes(public, *sizes) != parameter_shapes(model, *sizes):
        raise UserError(
            f"the run has model.multiple={model.multiple}, but the public implementation rounds SwiGLU's inner width "
            "to a multiple of 256: it cannot load these weights"
        )
    prefix = "model.inner."
    state = {prefix + reference_name(name): tensor for name, tensor in trained.weights(kind).items()}
    for ours, theirs in STATES.items():
        state[prefix + theirs] = trained.tensors[f"buffers.{ours}"]
    if f"raw.{PUZZLE}" in trained.tensors:
        state[prefix + PUZZLE_TABLE] = trained.tensors[f"raw.{PUZZLE}"]
    return state
