"""How a run ends: its files, or a sentence that says why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trm.io import write_json
from trm.provenance import provenance
from trm.study.fingerprint import RECIPE_VERSION
from trm.study.flops import parameters, step_flops, train_flops
from trm.training import outputs
from trm.training.history import to_csv

if TYPE_CHECKING:
    from trm.training.loop import Trainer


def not_a_number_sentence(trainer: Trainer, what: str, step: int, good: int | None) -> str:
    """Where the run broke, from where it can go on, and the likeliest reason."""
    training = trainer.config.training
    last = f"the last good checkpoint is step {good}" if good else "there is no checkpoint yet"
    if step <= max(1, training.warmup_steps):
        suspect = f"it broke during the warm-up, so the data or training.lr={training.lr:g} are the suspects"
    elif trainer.precision.name == "float16":
        suspect = "float16's range is the suspect: try training.precision=bfloat16"
    else:
        before = f"the weight norm was {trainer.reporter.weight_norm:.4g} at the last report"
        suspect = f"training.lr={training.lr:g} is the suspect ({before})"
    return f"training stopped: {what} is no number at step {step}; {last}; {suspect}"


def finish_run(trainer: Trainer) -> None:
    """Write a finished run's files."""
    config, state, record, backend = trainer.config, trainer.state, trainer.record, trainer.backend
    puzzles, views = trainer.dataset.puzzles, state.layout.views
    ema = None if state.ema is None else views(state.ema)
    buffers = {"h_init": state.h_init, "l_init": state.l_init}
    tensors = outputs.pack_weights(views(state.params), ema, buffers, state.puzzle_table, record.snapshots)
    meta = {
        "run": trainer.out.name,
        "fingerprint": trainer.fingerprint,
        "recipe_version": RECIPE_VERSION,
        "precision": trainer.precision.name,
        **puzzles._asdict(),
    }
    outputs.save_weights(trainer.out / outputs.WEIGHTS, tensors, config, meta)
    outputs.write_bytes(trainer.out / "history.csv", to_csv(record.rows))
    wall = trainer.wall_seconds_now()
    rows = record.done * config.training.batch_size
    final = {name: value for name, value in record.rows[-1].items() if name.startswith(("train/", "eval/"))}
    model = config.model
    training_json = {
        "format": 1,
        "run": trainer.out.name,
        "fingerprint": trainer.fingerprint,
        "recipe_version": RECIPE_VERSION,
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "dataset": trainer.dataset.summary,
        "outcome": "finished",
        "parameters": parameters(model, puzzles.seq_len, puzzles.vocab),
        "flops_per_row": step_flops(model, puzzles.seq_len, puzzles.vocab),
        "train_flops": train_flops(model, config.training, puzzles.seq_len, puzzles.vocab),
        "steps": record.done,
        "rows": rows,
        "wall_seconds": round(wall, 3),
        "setup_seconds": round(trainer.setup_seconds, 3),
        "rows_per_second": round(rows / wall, 3),
        "peak_memory_bytes": backend.peak_memory(),
        "resumes": record.resumes,
        "device": str(backend.device),
        "device_name": backend.device_name(),
        "backend": backend.name,
        "workers": backend.processes,
        "devices": backend.device_count(),
        "threads": trainer.threads,
        "precision": trainer.precision.name,
        "final": {name: value for name, value in final.items() if value is not None},
        "best": record.best,
        "provenance": provenance(trainer.started_at),
    }
    write_json(trainer.out / "training.json", training_json)
