"""The files of a finished run, and the error message for one that diverged."""

import time
from pathlib import Path

import torch

from trm.backends.base import Backend
from trm.io import sha256_file, write_bytes, write_json
from trm.provenance import provenance
from trm.study.fingerprint import RECIPE_VERSION, run_fingerprint
from trm.study.flops import parameters, step_flops, train_flops
from trm.study.records import HISTORY, TRAINING, WEIGHTS, sealed
from trm.study.schema import TrainingConfig
from trm.training import origin, outputs
from trm.training.checkpoints.saving import Record
from trm.training.dataset import Dataset
from trm.training.history import to_csv
from trm.training.state import TrainState, bias_corrected


def divergence_message(
    training: TrainingConfig, precision: str, weight_norm: float, what: str, step: int, good: int | None
) -> str:
    """The error for `what` becoming NaN or inf at `step`: the last good checkpoint `good` and the likely cause.

    `weight_norm`: norm of all weights at the last report.
    """
    last = f"the last good checkpoint is step {good}" if good else "there is no checkpoint yet"
    if step <= max(1, training.warmup_steps):
        suspect = f"it broke during the warm-up, so the data or training.lr={training.lr:g} are the suspects"
    elif precision == "float16":
        suspect = "float16's range is the suspect: try training.precision=bfloat16"
    else:
        before = f"the weight norm was {weight_norm:.4g} at the last report"
        suspect = f"training.lr={training.lr:g} is the suspect ({before})"
    return f"training stopped: {what} is not finite at step {step}; {last}; {suspect}"


def finish_run(
    out: Path,
    state: TrainState,
    record: Record,
    backend: Backend,
    dataset: Dataset,
    wall_seconds: float,
    setup_seconds: float,
    started_at: str,
) -> None:
    """Write weights.safetensors, history.csv and, last, training.json into `out`. Called by all processes."""
    config, sizes, views = state.config, state.puzzles, state.layout.views
    host, _ = state.on_host(backend, carry=False)  # a collective under SPMD
    if backend.rank:
        return
    decay = config.training.ema
    ema = views(bias_corrected(host["ema"], decay, host["ema_steps"])) if "ema" in host else None
    buffers = {name: host[name] for name in ("h_init", "l_init")}
    tensors = outputs.pack_weights(views(host["params"]), ema, buffers, host.get("puzzle"), record.snapshots)
    meta = {
        "run": out.name,
        "fingerprint": run_fingerprint(config),
        "recipe_version": RECIPE_VERSION,
        "precision": state.precision.name,
        "data": origin.record(dataset, config),
        **sizes._asdict(),
    }
    outputs.save_weights(out / WEIGHTS, tensors, config, meta)
    write_bytes(out / HISTORY, to_csv(record.rows))
    rows = record.done * config.training.batch_size
    model, shape = config.model, (sizes.seq_len, sizes.vocab)
    training_json = {
        "format": 1,
        "run": out.name,
        "fingerprint": meta["fingerprint"],
        "recipe_version": RECIPE_VERSION,
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "dataset": dataset.summary,
        "sha256": {name: sha256_file(out / name) for name in (WEIGHTS, HISTORY)},
        "outcome": "finished",
        "parameters": parameters(model, *shape),
        "flops_per_row": step_flops(model, *shape),
        "train_flops": train_flops(model, config.training, *shape),
        "steps": record.done,
        "rows": rows,
        "wall_seconds": round(wall_seconds, 3),
        "setup_seconds": round(setup_seconds, 3),
        "cpu_seconds": round(record.cpu_seconds + time.process_time(), 3),
        "rows_per_second": round(rows / wall_seconds, 3),
        "peak_memory_bytes": backend.peak_memory(),
        "resumes": record.resumes,
        "device": str(backend.device),
        "device_name": backend.device_name(),
        "backend": backend.name,
        "implementation": backend.implementation,
        "workers": backend.processes,
        "devices": backend.device_count(),
        "threads": torch.get_num_threads(),
        "precision": state.precision.name,
        "final": {
            name: value
            for name, value in record.rows[-1].items()
            if name.startswith(("train/", "eval/")) and value is not None
        },
        "best": record.best,
        "provenance": provenance(started_at),
    }
    write_json(out / TRAINING, sealed(training_json))
