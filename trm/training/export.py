"""Trained models for other programs: one supervision step as ONNX, and the layout of the Hugging Face hub."""

import importlib
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trm.errors import UserError
from trm.io import write_bytes, write_json, write_text
from trm.model import definition
from trm.model.parameters import architecture
from trm.training.card import card, evaluations
from trm.training.outputs import PUZZLE, TrainedModel, load_weights

OPSET = 20
"""Version of ONNX's operators: old enough for runtimes since 2024."""


def plain_config(trained: TrainedModel) -> dict[str, Any]:
    """All that is needed to run the weights, as in config.json and the ONNX file's metadata."""
    model = trained.config.model
    sizes = {name: trained.meta[name] for name in ("seq_len", "vocab", "num_ids")}
    names = ("d_model", "layers", "heads", "h_cycles", "l_cycles", "puzzle_tokens")
    shape = {name: getattr(model, name) for name in names}
    return {**sizes, **shape, "rope": model.position == "rope", "steps": model.halt_max_steps}


def plain_tensors(trained: TrainedModel) -> dict[str, Tensor]:
    """The averaged weights, the puzzle table and the start vectors, float32, without prefixes."""
    tensors = trained.weights("ema")
    tensors |= {name: trained.tensors[f"buffers.{name}"].float() for name in ("h_init", "l_init")}
    if f"raw.{PUZZLE}" in trained.tensors:
        tensors[PUZZLE] = trained.tensors[f"raw.{PUZZLE}"].float()
    return tensors


def write_huggingface(run: Path, out: Path) -> int:
    """Write `model.safetensors`, `config.json` and `README.md` with the hub's metadata; returns bytes of weights.

    Raises:
        UserError: the run has no weights.
    """
    from huggingface_hub import EvalResult, ModelCardData
    from safetensors.torch import save

    trained = load_weights(run)
    weights = save({name: t.clone() for name, t in plain_tensors(trained).items()}, metadata={"format": "pt"})
    write_bytes(out / "model.safetensors", weights)
    config = {"model_type": "tiny_recursive_model", "architectures": ["TinyRecursiveModel"]}
    write_json(out / "config.json", config | plain_config(trained), indent=2)
    task = trained.config.data.task
    results = [
        EvalResult(
            task_type="reasoning",
            dataset_type=task,
            dataset_name=dataset,
            metric_type="exact_accuracy",
            metric_name=f"exact accuracy ({row['policy']}, {row['steps']} steps, {row['restarts']} starts)",
            metric_value=row["exact_accuracy"],
        )
        for dataset, row in evaluations(run)
    ]
    data = ModelCardData(
        license="mit",
        library_name="trm-scaling",
        tags=["tiny-recursive-model", "arxiv:2510.04871", task],
        model_name=out.name,
        eval_results=results or None,
    )
    write_text(out / "README.md", f"---\n{data.to_yaml()}\n---\n\n{card(run, trained, out.name)}")
    return len(weights)


class Step(nn.Module):
    """One supervision step of a trained model, float32."""

    def __init__(self, trained: TrainedModel):
        super().__init__()
        self.model, self.weights = trained.config.model, trained.weights("ema")
        self.arch = architecture(self.model, torch.float32)
        self.table = trained.tensors[f"raw.{PUZZLE}"].float() if f"raw.{PUZZLE}" in trained.tensors else None

    def forward(self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor) -> tuple[Tensor, ...]:
        """`puzzle`: rows of the puzzle table [B]; see `definition.supervision_step`."""
        vectors = None if self.table is None else self.table[puzzle]
        cycles = self.model.h_cycles, self.model.l_cycles
        return definition.supervision_step(z_H, z_L, inputs, vectors, self.weights, self.arch, *cycles)


def write_onnx(run: Path, out: Path) -> int:
    """Write one supervision step with its weights as ONNX, for any batch; returns bytes.

    Inputs: z_H, z_L [L, B, D] float32, inputs [B, S] and puzzle [B] int64. Outputs: z_H_next, z_L_next, logits
    [S, B, V], halt_logits [B]. The metadata has the config and the start vectors as JSON.

    Raises:
        UserError: the run has no weights, or onnx is not installed.
    """
    try:
        for package in ("onnx", "onnxscript"):
            importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install onnx onnxscript") from None
    trained = load_weights(run)
    step, sizes = Step(trained), plain_config(trained)
    cells, width = sizes["seq_len"], sizes["d_model"]
    z = torch.zeros(cells + sizes["puzzle_tokens"], 2, width)
    example = (z, z.clone(), torch.ones(2, cells, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    rows = torch.export.Dim("rows")
    print("tracing one supervision step: up to a minute or two", file=sys.stderr, flush=True)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            step.eval(),
            example,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["z_H", "z_L", "inputs", "puzzle"],
            output_names=["z_H_next", "z_L_next", "logits", "halt_logits"],
            dynamic_shapes=({1: rows}, {1: rows}, {0: rows}, {0: rows}),
        )
    assert program is not None
    model = program.model_proto
    facts: dict[str, Any] = {"config": sizes}
    facts |= {name: trained.tensors[f"buffers.{name}"].float().tolist() for name in ("h_init", "l_init")}
    for key, value in facts.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    data = model.SerializeToString()
    write_bytes(out, data)
    return len(data)
