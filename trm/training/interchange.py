"""Conversion to and from state dicts of the public implementation (October 2025, both variants)."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.fingerprint import RECIPE_VERSION, run_fingerprint
from trm.study.flops import parameter_shapes
from trm.study.reading import parse, read_yaml
from trm.study.schema import RunConfig
from trm.training.outputs import PUZZLE, TrainedModel, pack_weights

PREFIXES = ("model.", "inner.", "module.", "ema.", "ema_model.")
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Parts of names, anywhere in them, that torch's wrappers of modules add."""
NESTED = {
    "raw": ("state_dict", "model", "model_state_dict", "module"),
    "ema": ("ema", "ema_state_dict", "model_ema", "state_dict_ema", "ema_model_state_dict", "ema_model"),
}
"""Keys of the files of trainers that keep more than weights: of the weights, and of their average."""
STATES = {"h_init": "H_init", "l_init": "L_init"}
PUZZLE_TABLE = "puzzle_emb.weights"
SETTINGS = "all_config.yaml"
"""The public trainer's settings, beside its checkpoints."""
UNSEEN = {
    "heads": "num_heads",
    "h_cycles": "H_cycles",
    "l_cycles": "L_cycles",
    "halt_max_steps": "halt_max_steps",
    "position": "pos_encodings",
}
"""Settings that no tensor shows, and their public names."""


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
    """The state dict without the prefixes of torch.compile and wrappers.

    Raises:
        UserError: it holds two tensors of one name, such as weights and their average.
    """
    plain: dict[str, Tensor] = {}
    for full, tensor in state.items():
        name = full
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        while name.startswith(PREFIXES):
            name = name.split(".", 1)[1]
        if name in plain:
            raise UserError(
                f"the checkpoint has {name} twice, once as {full}: save one of the two models alone"
            )
        plain[name] = tensor
    return plain


def read_state(path: Path, kind: str = "") -> dict[str, Tensor]:
    """Read a state dict from a torch or safetensors file.

    Args:
        kind: `raw` or `ema`, of a file that keeps both; empty: it keeps one of them.

    Raises:
        UserError: it cannot be read, holds NaN or infinity, or keeps both kinds and none is asked for.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        if isinstance(error, UnpicklingError):  # torch advises to load it without protection
            reason = "it holds more than tensors, or is damaged"
        raise UserError(
            f"{path} cannot be read as a state dict ({reason}): load it with its own trainer and write the weights "
            "alone, torch.save(model.state_dict(), FILE)"
        ) from error
    while isinstance(state, dict) and (inner := _nested(path, state, kind)):
        state = inner
    if not isinstance(state, dict) or not state or not all(isinstance(t, Tensor) for t in state.values()):
        raise UserError(
            f"{path} is not a state dict, a mapping from names to tensors: write the weights alone, "
            "torch.save(model.state_dict(), FILE)"
        )
    broken = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(f"{path}: {broken[0]} holds NaN or infinity: take an earlier checkpoint")
    return state


def _nested(path: Path, state: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """The weights of a kind among the entries of a trainer's file; None: the entries are no such mappings."""
    found = {
        name: next((state[key] for key in keys if isinstance(state.get(key), dict)), None)
        for name, keys in NESTED.items()
    }
    given = [name for name, inner in found.items() if inner]
    if len(given) > 1 and not kind:
        raise UserError(f"{path} keeps weights and their average: choose with --weights raw or --weights ema")
    if given and kind and kind not in given:
        raise UserError(f"{path} keeps {given[0]} weights alone: leave out --weights {kind}")
    return found[kind or given[0]] if given else None


def with_settings(path: Path, config: RunConfig) -> tuple[RunConfig, str]:
    """`config` with what only the trainer's settings beside the checkpoint `path` say, and a sentence on their origin.

    Raises:
        UserError: the settings are damaged, or `config` states others.
    """
    beside, model = path.parent / SETTINGS, config.model
    if not beside.exists():
        assumed = ", ".join(f"model.{name}={getattr(model, name)}" for name in UNSEEN)
        return config, f"no {SETTINGS} beside it: assumed as in --config, for no tensor shows them: {assumed}"
    public = read_yaml(beside)
    try:
        values = {name: public["arch"][key] for name, key in UNSEEN.items()}
    except (KeyError, TypeError):
        raise UserError(f"{beside} does not hold the public trainer's settings: put its own there") from None
    if model.mixer == "mlp" and values["position"] == "rope":
        values["position"] = "none"  # the public MLP variant does not use it
    for name in sorted(set(values) & model.model_fields_set):
        if (own := getattr(model, name)) != values[name]:
            raise UserError(
                f"{beside} has {UNSEEN[name]} {values[name]}, but --config has model.{name}={own}"
            )
    if model.mixer == "mlp":
        del values["heads"]
    document = config.model_dump(mode="json")
    document["model"] |= values
    return parse(RunConfig, document, str(beside)), f"what no tensor shows is as in {beside}"


def from_reference(
    state: dict[str, Tensor], config: RunConfig, run: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Convert a public state dict to the tensors and metadata of weights.safetensors; `config` describes the model.

    Raises:
        UserError: names the first tensor that is missing, unexpected, or has another shape.
    """
    sizes = shape(config.data)
    shapes = parameter_shapes(config.model, sizes.seq_len, sizes.vocab_size)
    ours = {name: reference_name(name) for name in shapes} | STATES | {PUZZLE: PUZZLE_TABLE}
    # `to-huggingface` keeps our names
    plain = {ours.get(name, name): tensor for name, tensor in plain_names(state).items()}
    weights = {}
    for name, expected in shapes.items():
        public = ours[name]
        if public not in plain:
            raise UserError(
                f"the checkpoint has no {public}, but {sorted(plain)[0] if plain else 'nothing else'}: is its variant "
                f"model.mixer={config.model.mixer}?"
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
    if table is not None and table.shape[1:] != (config.model.d_model,):
        raise UserError(
            f"the checkpoint's {PUZZLE_TABLE} is {table.shape[-1]} wide, but only a table of the model's width, "
            f"model.d_model={config.model.d_model}, can be used"
        )
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
