"""Results with known laws, written exactly as docs/files.md says: what the analysis is tried and
looked at with."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import betabinom

from tests.training.conftest import DATA, MODEL
from trm.analysis.tables import Table
from trm.study.fingerprint import evaluation_fingerprint, evaluation_marks
from trm.study.schema import EvaluationConfig, RunConfig

Law = Callable[[RunConfig], float]
"""Expected error of a run from its configuration."""

SPREAD = 0.10
"""Standard deviation of the log error between seeds."""
TEST_PUZZLES = 500
LAPTOP = {
    "model": MODEL | {"d_model": 32, "l_cycles": 2, "halt_max_steps": 8},
    "data": DATA | {"clues_min": 4, "train_puzzles": 100},
    "training": {"batch_size": 128, "steps": 400, "lr": 1e-3, "warmup_steps": 50, "ema": 0.99},
}
PROVENANCE = {
    "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "python": "3.11.7", "platform": "Linux",
    "versions": {"torch": "2.9.0", "numpy": "2.4.6"},
    "started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:01:00Z",
}  # fmt: skip


def law(config: RunConfig) -> float:
    """E + A D'^-a with Muennighoff's effective data, times factors for size, steps, recursion and recipe."""
    data, model, training = config.data, config.model, config.training
    unique = float(data.train_puzzles or 1)
    effective = unique + unique * 15 * (1 - np.exp(-data.augmentations / 15))
    error = 0.004 + 14.0 * effective**-0.85
    error *= (model.d_model / 32) ** -0.5 * (training.steps / 400) ** -0.6
    error *= (model.h_cycles * (model.l_cycles + 1) / 6) ** -0.4
    error *= 1.35 if model.mixer == "attention" else 1.0
    error *= 1.6 if training.ema == 0 else 1.0
    error *= 1 + 0.12 * np.log2(training.lr / 1e-3 / (training.batch_size / 128) ** 0.5) ** 2
    return float(np.clip(error, 0.0, 0.985))


def overlay(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The laptop recipe with dotted keys replaced."""
    values = json.loads(json.dumps(LAPTOP))
    for key, value in changes.items():
        section, name = key.split(".")
        values[section][name] = value
    return values


def parameters(config: RunConfig) -> int:
    """Close to the real count: two blocks of SwiGLU over tokens and channels."""
    d = config.model.d_model
    return int(config.model.layers * (3 * d * max(256, 2.67 * d) + 3 * 17 * 256) + 2 * 11 * d)


def write_run(
    root: Path,
    config: RunConfig,
    error: Law = law,
    evaluations: Sequence[EvaluationConfig] = (EvaluationConfig(),),
) -> dict[str, Any]:
    """Write one run's folder; returns its TableRun entry. Deterministic in (config, seed)."""
    text = config.model_dump_json(exclude_defaults=True)  # a new field of the schema changes no draw
    rng = np.random.default_rng([config.seed, *text.encode()])
    name = f"run-{abs(hash_text(text)):08x}"
    folder = root / "results" / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    expected = float(np.clip(error(config) * np.exp(SPREAD * rng.standard_normal()), 0, 1))
    size, steps, batch = parameters(config), config.training.steps, config.training.batch_size
    rows = steps * batch
    per_row = 6.0 * size * 17 * config.model.h_cycles * (config.model.l_cycles + 1) / 2
    seconds = per_row * rows / 4e11
    history = _history(config, expected, rng, seconds)
    history.to_csv(folder / "history.csv", index=False)
    exact, data = history["eval/exact_accuracy"].dropna(), config.data
    best = {"step": int(history["step"].loc[exact.idxmax()]), "eval/exact_accuracy": float(exact.max())}
    final = {
        "train/loss": float(history["train/loss"].iloc[-1]),
        "eval/exact_accuracy": float(exact.iloc[-1]),
    }
    dataset = {"name": f"data-{data.train_puzzles}", "identity": "0" * 64}
    dataset |= {"train_puzzles": data.train_puzzles, "augmentations": data.augmentations}
    training = {"format": 1, "run": name, "fingerprint": f"{hash_text(text):064x}", "recipe_version": 1}
    training |= {"config": config.model_dump(mode="json"), "seed": config.seed, "dataset": dataset}
    training |= {"outcome": "finished", "resumes": 0, "parameters": size, "steps": steps, "rows": rows}
    training |= {"flops_per_row": per_row, "train_flops": per_row * rows, "wall_seconds": seconds}
    training |= {"setup_seconds": 1.5, "rows_per_second": rows / seconds, "device": "cpu", "backend": "cpu"}
    training |= {"peak_memory_bytes": int(2e8 + 40 * size + 900 * batch * config.model.d_model)}
    training |= {"device_name": "2-core CPU", "workers": 1, "threads": 2, "precision": "float32"}
    training |= {"final": final, "best": best, "provenance": PROVENANCE}
    (folder / "training.json").write_text(json.dumps(training))
    files = []
    for settings in evaluations:
        file = f"evaluation-{evaluation_fingerprint(settings, evaluation_marks(config.data))[:8]}.json"
        result = _evaluation(training, config, settings, expected, rng)
        (folder / file).write_text(json.dumps(result))
        files.append(file)
    return {"run": name, "seed": config.seed, "directory": str(folder), "evaluations": files}


def experiment(
    root: Path,
    name: str,
    points: Sequence[Mapping[str, Any]],
    seeds: int = 3,
    error: Law = law,
    evaluations: Sequence[EvaluationConfig] = (EvaluationConfig(),),
) -> dict[str, Any]:
    """Write an experiment's runs; returns the JSON that `trm table --experiment` takes."""
    entries = []
    for coords in points:
        config = overlay(coords)
        runs = [
            write_run(root, RunConfig.model_validate({**config, "seed": seed}), error, evaluations)
            for seed in range(seeds)
        ]
        entries.append({"coords": dict(coords), "label": "", "runs": runs})
    return {"name": name, "scale": "laptop", "study": "synthetic", "points": entries}


def measured(
    points: Sequence[tuple[Mapping[str, Any], Mapping[int, Any]]], metric: str = "exact_accuracy", **same: Any
) -> Table:
    """A table of values alone. points: (coordinates or other columns, seed -> value of `metric`); same: columns of all
    rows."""
    shared: dict[str, Any] = {"experiment": "t", "series": "", "evaluation": "e", "split": "test"}
    shared |= {"policy": "fixed", "eval_steps": 32, "restarts": 1, "puzzles": 500.0, "train_flops": 1e12}
    shared |= {"model.halt_max_steps": 8, "finished": True, "primary": True, "main": True}
    shared |= {"evaluation.first": True, "parameters": 1e4}
    rows = []
    for index, (place, values) in enumerate(points):
        for seed, value in values.items():
            own = {"point": index, "label": str(dict(place)), "run": f"{index}-{seed}", "seed": seed}
            own |= {metric: value}
            rows.append({**shared, **same, **own, **place})
    frame = pd.DataFrame(rows)
    if "exact_accuracy" not in frame:
        frame["exact_accuracy"] = 0.5
    frame["error"] = frame.get("error", 1 - frame["exact_accuracy"])
    frame["correct"] = (frame["exact_accuracy"] * frame["puzzles"]).fillna(0).round()
    coordinates = list(dict.fromkeys(key for place, _ in points for key in place if "." in key))
    runs = {run: {"outcome": "finished"} for run in frame["run"]}
    info = {"experiment": shared["experiment"], "coordinates": coordinates, "runs": runs, "test_steps": 32}
    return Table(frame, pd.DataFrame({"run": [], "step": []}), info)


def hash_text(text: str) -> int:
    """A stable 32-bit number of a text (Python's own hash is salted)."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def _history(config: RunConfig, error: float, rng: np.random.Generator, seconds: float) -> pd.DataFrame:
    steps = config.training.steps
    step = np.unique(np.linspace(1, steps, 80).round().astype(int))
    part = step / steps
    exact = (1 - error) / (1 + np.exp(-9 * (part - 0.45))) + 0.01 * rng.standard_normal(len(part))
    train = np.clip(1.08 * exact + 0.02 * rng.standard_normal(len(part)), 0, 1)
    evaluated = np.isin(np.arange(len(step)), np.linspace(7, len(step) - 1, 10).round().astype(int))
    noise = 1 + 0.05 * rng.standard_normal(len(part))
    norm = np.sqrt(0.3 + 600 / config.training.batch_size * (0.4 + part)) * noise
    loss = (2.2 * np.exp(-3 * part) + 0.3 * error) * noise
    frame = {
        "step": step,
        "rows": step * config.training.batch_size,
        "seconds": part * seconds,
        "train/loss": loss,
        "train/lm_loss": 0.9 * loss,
        "train/halt_loss": 0.1 * loss,
        "train/accuracy": np.clip(0.4 + 0.6 * train, 0, 1),
        "train/exact_accuracy": train,
        "train/halt_accuracy": np.clip(0.8 + 0.1 * part, 0, 1),
        "train/steps": 8 - 6 * train,
        "train/grad_norm": norm,
        "train/lr": np.minimum(1, step / 50) * config.training.lr,
        "train/weight_norm": 30 + part,
        "eval/exact_accuracy": np.where(evaluated, np.clip(exact, 0, 1), np.nan),
        "eval/accuracy": np.where(evaluated, np.clip(0.5 + 0.5 * exact, 0, 1), np.nan),
        "eval/cross_entropy": np.where(evaluated, 1.2 * np.exp(-3 * part) + 0.3 * error, np.nan),
        "perf/rows_per_second": config.training.batch_size * steps / seconds,
    }
    return pd.DataFrame(frame)


def _evaluation(
    training: dict[str, Any],
    config: RunConfig,
    settings: EvaluationConfig,
    error: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    most = config.model.halt_max_steps
    unroll = settings.unroll or (most,)
    per_step = training["flops_per_row"] / 1.7
    if settings.weights == "raw":
        error = min(1.0, 1.5 * error)
    if settings.weights == "average":
        error = min(1.0, error * (1.2 - 0.02 * settings.average))

    def result(
        policy: str, steps: int, restarts: int, wrong: float, mean: float, split: str = "test"
    ) -> dict[str, Any]:
        count = TEST_PUZZLES if split == "test" else 100
        correct = count - int(rng.binomial(count, np.clip(wrong, 0, 1)))
        exact = correct / count
        found = {"split": split, "policy": policy, "steps": steps, "restarts": restarts, "puzzles": count}
        found |= {"correct": correct, "exact_accuracy": exact, "accuracy": 0.6 + 0.4 * exact}
        found |= {"blank_accuracy": 0.4 + 0.6 * exact, "cross_entropy": 0.05 + 0.8 * (1 - exact)}
        return found | {"mean_steps": mean, "flops_per_puzzle": per_step * mean * restarts, "seconds": 0.2}

    def unrolled(steps: int) -> float:
        return error * (1 + 1.5 * np.exp(-steps / 3) - 1.5 * np.exp(-most / 3) - 0.06 * np.log2(steps / most))

    results = [result("fixed", steps, 1, unrolled(steps), steps) for steps in unroll]
    if settings.confident:
        results += [result("confident", s, 1, 1.02 * unrolled(s), min(s, 1.5 + 0.2 * s)) for s in unroll]
    for count in settings.restarts:
        for policy, power in (("restarts", 0.6), ("majority", 0.35), ("oracle", 0.9)):
            results.append(result(policy, most, count, error * count**-power, most))
            if policy == "restarts":
                share = betabinom.pmf(np.arange(count + 1), count, 2 * (1 - error), 2 * error)
                results[-1]["solved_counts"] = (TEST_PUZZLES * share).round().astype(int).tolist()
    if settings.train_puzzles:
        results.append(result("fixed", most, 1, 0.3 * error, most, "train"))
    share = np.exp(-np.arange(most) / (1.2 + 4 * error))
    halting = {"steps": list(range(1, most + 1)), "share": ((1 - error) * share / share.sum()).tolist()}
    copied = ("run", "fingerprint", "seed", "config", "parameters", "train_flops", "provenance")
    return {
        **{key: training[key] for key in copied},
        "format": 1,
        "evaluation": settings.model_dump(mode="json"),
        "results": results,
        "halting": halting,
        "guess": {"uniform": 0.25, "rules": 0.55},
        "traces": [_trace(rng, most) for _ in range(settings.traces)],
    }


def _trace(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    """A 4x4 Sudoku whose blanks are filled in over the steps (tokens of the data set: value + 1, 1 =
    blank)."""
    solution = np.array([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]])
    solution = rng.permutation(4)[solution - 1] + 1
    answer = solution.ravel() + 1
    blank = rng.random(16) < 0.6
    question = np.where(blank, 1, answer)
    solved_at = rng.integers(1, steps + 3, 16)
    guess = np.where(blank, rng.integers(2, 6, 16), answer)
    states = [np.where(solved_at <= step, answer, guess).tolist() for step in range(1, steps + 1)]
    halt = [float(step - 4) for step in range(1, steps + 1)]
    return {"question": question.tolist(), "answer": answer.tolist(), "steps": states, "halt": halt}
