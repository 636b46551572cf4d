"""Export of a run for publication: the EMA weights and a model card."""

import json
from pathlib import Path
from typing import Any

from trm.io import paragraph, read_json, write_text
from trm.study.fingerprint import task_slug
from trm.study.records import TRAINING, WEIGHTS, check_evaluation, read_training
from trm.study.schema import DataConfig
from trm.study.text import count
from trm.training.outputs import PUZZLE, TrainedModel, load_weights, save_weights

SHOWN = ("fixed", "confident")
"""Policies in the card, besides `restarts`: users have no oracle, and votes are no better than the halt logit."""


def write_model(run: Path, out: Path) -> int:
    """Write `weights.safetensors` (float32, EMA only) and `README.md`; returns the size of the weights file in bytes.

    Raises:
        UserError: the run has no weights.
    """
    trained = load_weights(run)
    kept = {f"ema.{name}": tensor for name, tensor in trained.weights("ema").items()}
    others = ("buffers.", f"raw.{PUZZLE}")
    kept |= {name: tensor for name, tensor in trained.tensors.items() if name.startswith(others)}
    data = trained.config.data  # drop local paths; the files' checksums stay
    config = trained.config.model_copy(update={"data": data.model_copy(update={"files": ()})})
    save_weights(out / WEIGHTS, kept, config, trained.meta)
    write_text(out / "README.md", card(run, trained, out.name))
    return (out / WEIGHTS).stat().st_size


def _data(data: DataConfig) -> str:
    """`csv, 1,000 training puzzles, 50 symmetric copies of each`, with the extra clues by stage, if any."""
    puzzles = f"{data.train_puzzles:,}" if data.train_puzzles else "all"
    parts = [data.source, f"{puzzles} training puzzles"]
    if data.augmentations:
        parts.append(f"{data.augmentations:,} symmetric copies of each")
    if data.gives_hints:
        stages = [*(stage.hints for stage in data.curriculum if stage.hints), data.hints]
        parts.append("extra clues " + ", then ".join(f"{least} to {most}" for least, most in stages))
    return ", ".join(parts)


def card(run: Path, trained: TrainedModel, name: str) -> str:
    """The model card: model, data, training, provenance, accuracy."""
    config, document = trained.config, read_training(run) if (run / TRAINING).exists() else {}
    model, data, training = config.model, config.data, config.training
    parameters = sum(tensor.numel() for tensor in trained.weights("ema").values())
    lines = [
        f"# {name}",
        "",
        f"Tiny Recursive Model (arXiv 2510.04871) for {task_slug(data)}: {parameters:,} parameters, "
        f"{model.mixer} mixer, width {model.d_model}, {count(model.layers, 'layer')}, T = {model.h_cycles}, "
        f"n = {model.l_cycles}, {model.halt_max_steps} supervision steps in training.",
        "",
        f"- Data: {_data(data)}, seed {data.seed}.",
        f"- Training: {training.steps:,} steps of {training.batch_size} rows, {training.optimizer}, "
        f"lr {training.lr:g}, EMA {training.ema:g}, seed {config.seed}, {trained.meta['precision']}.",
    ]
    if document:
        made = document["provenance"]
        commit = str(made.get("commit"))[:12] + "+" * bool(made.get("dirty"))
        lines.append(
            f"- Trained for {document['wall_seconds'] / 60:.0f} minutes on {document['device_name']} "
            f"({count(document['threads'], 'thread')}), commit {commit}, run {trained.meta['run']}."
        )
    lines = [paragraph(line) for line in lines]
    rows = [
        f"| {puzzles} | {row['policy']} | {row['steps']} | {row['restarts']} "
        f"| {100 * row['exact_accuracy']:.1f} % of {row['puzzles']:,} |"
        for puzzles, row in evaluations(run)
    ]
    if rows:
        lines += [
            "",
            "| test puzzles of | policy | steps | restarts | solved |",
            "|---|---|---|---|---|",
            *rows,
        ]
    lines += [
        "",
        "Use: `python -m trm solve PUZZLE`, which checks answers against the rules: a model's answer may be wrong.",
        "",
        "```json",
        json.dumps(
            config.model_dump(mode="json", exclude_defaults=True, exclude={"data": {"files"}}), indent=1
        ),
        "```",
        "",
    ]
    return "\n".join(lines)


def evaluations(run: Path) -> list[tuple[str, dict[str, Any]]]:
    """What a user can expect on test puzzles: the data set's name, and a row of an evaluation's results.

    Raises:
        UserError: a file does not belong to the run.
    """
    training = read_training(run) if (run / TRAINING).exists() else {}
    found = []
    for path in sorted(run.glob("evaluation-*.json")):
        evaluation = read_json(path)
        if training:
            check_evaluation(path, evaluation, training)
        name = evaluation.get("dataset", training.get("dataset", {})).get("name", "")
        found += [
            (name, row)
            for row in evaluation["results"]
            if row["split"] == "test"
            and (row["policy"] in SHOWN or (row["policy"] == "restarts" and row["restarts"] > 1))
        ]
    return found
