"""Collects the result files of one experiment (docs/files.md) into a tidy table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trm.analysis.axes import series_of, text_of
from trm.analysis.labels import TARGETS
from trm.analysis.specs import TablePoint, TableRun, TableSpec
from trm.analysis.tables.store import Table, mark
from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.flops import step_flops
from trm.study.records import AGAIN, HISTORY, TRAINING, WEIGHTS, check_evaluation, read_record, read_training
from trm.study.schema import RunConfig
from trm.study.stages import recursion_stages
from trm.study.tasks import spec_of

CURVE_ROWS = 240
"""Most history rows of a run kept for the curves; rows with a validation result are always kept."""
TRACES_PER_POINT = 4
MEASURED = (
    "puzzles", "correct", "accuracy", "blank_accuracy", "blank_error", "cross_entropy", "mean_steps",
    "flops_per_puzzle",
)  # fmt: skip
"""Fields of an evaluation's result that become columns as they are."""
NEEDED = {"split", "policy", "steps", "puzzles", "correct", "exact_accuracy"}
"""Fields that every result has."""
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "v4": 275e12}
"""Dense bfloat16 FLOP/s of one device by its maker, by a part of its name."""


def collect(spec: TableSpec, *, allow_missing: bool = False) -> Table:
    """Read every run of an experiment.

    Args:
        spec: grid points with the folders and files of their runs.
        allow_missing: leave out runs whose files are missing or damaged, and list them in `info["missing"]`.

    Returns:
        The table: a row for each run x evaluation x result.

    Raises:
        UserError: a file is missing or damaged (and not allowed to be), or no run is complete.
    """
    rows: list[dict[str, Any]] = []
    curves: list[pd.DataFrame] = []
    seen: set[str] = set()
    info: dict[str, Any] = {
        "format": 1,
        "experiment": spec.name,
        "study": spec.study,
        "scale": spec.scale,
        "recipe": spec.recipe,
        "planned_runs": len({run.run for point in spec.points for run in point.runs}),
        "coordinates": list(dict.fromkeys(key for point in spec.points for key in point.coords)),
        "labels": [_label(point) for point in spec.points],
        "missing": [],
        "halting": {},
        "bins": {},
        "guess": {},
        "tasks": {},
        "traces": [],
        "runs": {},
    }
    for index, point in enumerate(spec.points):
        traces: list[dict[str, Any]] = []
        for run in point.runs:
            found = _run(run, info, allow_missing)
            if found is None:
                continue
            training, history, evaluations = found
            if run.run not in seen:
                seen.add(run.run)
                curves.append(_curve(run, history))
            base = _run_columns(run, training, history)
            for number, (file, evaluation) in enumerate(evaluations):
                rows += _result_rows(spec, point, index, base, file, evaluation, number == 0)
            file, first = evaluations[0]
            counted = [result for result in first["results"] if "bins" in result]
            keys = ("split", "policy", "steps", "bins")
            first["bins"] = [{key: result[key] for key in keys} for result in counted]
            for part in ("halting", "guess", "bins", "tasks"):
                if first.get(part):
                    info[part][f"{run.run}/{_digest(file)}"] = first[part]
            about = {"run": run.run, "label": _label(point), "data": training["config"]["data"]}
            traces += [{**trace, **about} for trace in first.get("traces") or []]
        info["traces"] += traces[:TRACES_PER_POINT]
    if not rows:
        raise UserError(f"experiment {spec.name} has no finished run: nothing to tabulate")
    table = pd.DataFrame(rows)
    info["test_steps"] = mark(table, spec.test_steps)
    info["text_columns"] = [name for name in table.columns if pd.api.types.is_string_dtype(table[name])]
    records = info["runs"].values()
    info["commits"] = sorted({record["commit"] + ("+" if record["dirty"] else "") for record in records})
    return Table(table, pd.concat(curves, ignore_index=True), info)


def _label(point: TablePoint) -> str:
    named = (f"{key.rsplit('.', 1)[-1]}={text_of(value)}" for key, value in point.coords.items())
    return point.label or ", ".join(named) or "recipe"


def _digest(file: str) -> str:
    return file.removeprefix("evaluation-").removesuffix(".json")


def _run(
    run: TableRun, info: dict[str, Any], allow_missing: bool
) -> tuple[dict[str, Any], pd.DataFrame, list[tuple[str, dict[str, Any]]]] | None:
    """A run's training.json, history and evaluations, or None after noting what is missing."""
    folder = Path(run.directory)
    wanted = [folder / TRAINING, folder / HISTORY, *(folder / file for file in run.evaluations)]
    missing = [file for file in wanted if not file.exists()]
    for file in missing:
        if not allow_missing:
            raise UserError(f"{file} does not exist: train and evaluate {run.run}, or pass --allow-missing")
        info["missing"].append({"run": run.run, "seed": run.seed, "file": str(file)})
    present = [file for file in wanted[2:] if file not in missing]
    if set(wanted[:2]) & set(missing) or not present:
        return None
    try:
        training = read_training(folder, (HISTORY,))
        evaluations = [(file.name, _evaluation(file, training)) for file in present]
        history = _history(folder / HISTORY)
        history = history.assign(flops=cumulative_flops(training, history["step"]))
        info["runs"][run.run] = _provenance(training, history)
    except (UserError, KeyError, TypeError, ValueError) as error:
        why = f"{folder} holds a damaged file, or one of another version ({error!r}): delete it and build it again"
        why = str(error) if isinstance(error, UserError) else why
        if not allow_missing:
            raise UserError(why) from None
        info["missing"].append({"run": run.run, "seed": run.seed, "file": str(folder), "why": why})
        return None
    return training, history, evaluations


def _evaluation(path: Path, training: dict[str, Any]) -> dict[str, Any]:
    """An evaluation of the run. UserError: it is another one's, or has no results."""
    document = read_record(path, ("evaluation", "config", "results"))
    if not document["results"] or not all(set(result) >= NEEDED for result in document["results"]):
        raise UserError(f"{path} is damaged (its results are not complete): {AGAIN}")
    check_evaluation(path, document, training)
    return document


def _history(path: Path) -> pd.DataFrame:
    """A run's history.csv. ValueError: it is not one."""
    history = pd.read_csv(path).copy()  # in one block: pandas warns when it adds a column to a hundred
    numbers = {"step", "rows", "seconds"} <= set(history.select_dtypes("number"))
    if not numbers or not len(history) or not history["step"].is_monotonic_increasing:
        raise ValueError(f"{path.name} has no rising steps, rows and seconds")
    return history


def cumulative_flops(training: Mapping[str, Any], steps: pd.Series) -> np.ndarray:
    """Training FLOPs up to each of `steps`: in a curriculum the early stages cost less a step."""
    config = RunConfig.model_validate(training["config"])
    data = shape(config.data)
    done, total, knots = 0, 0.0, [(0.0, 0.0)]
    for stage in recursion_stages(config.model, config.training):
        each = step_flops(config.model, data.seq_len, data.vocab_size, *stage.recursion.cycles)
        total += each * (stage.last_step - done)
        done = stage.last_step
        knots.append((float(done), total))
    places, costs = zip(*knots)
    spent = np.interp(steps.to_numpy(float), places, costs)
    return np.asarray(spent * (training["train_flops"] / total))


def _provenance(training: Mapping[str, Any], history: pd.DataFrame) -> dict[str, Any]:
    """A run's entry in the table's provenance."""
    provenance = training["provenance"]
    losses = history["train/loss"].to_numpy(float) if "train/loss" in history else np.array([])
    return {
        "seed": training["seed"],
        "fingerprint": training["fingerprint"],
        "weights_sha256": training.get("sha256", {}).get(WEIGHTS),
        "dataset": training["dataset"]["name"],
        "outcome": training["outcome"],
        "commit": str(provenance.get("commit") or "unknown")[:12],
        "dirty": bool(provenance.get("dirty")),
        "versions": provenance.get("versions", {}),
        "device": str(training.get("device_name") or training.get("device") or "unknown"),
        "workers": int(training.get("workers") or 1),
        "device_seconds": float(training["wall_seconds"] + training.get("setup_seconds", 0.0))
        * _devices(training),
        "resumes": int(training.get("resumes") or 0),
        "broken": bool(np.isinf(losses).any() or (len(losses) and np.isnan(losses[-1]))),
    }


def _run_columns(run: TableRun, training: Mapping[str, Any], history: pd.DataFrame) -> dict[str, Any]:
    """What is known of a run, whatever the evaluation."""
    config = training["config"]
    model, data, fit = config["model"], config["data"], config["training"]
    puzzles = training["dataset"]["train_puzzles"]
    columns: dict[str, Any] = {
        "run": run.run,
        "seed": run.seed,
        "finished": training["outcome"] == "finished",
        "parameters": training["parameters"],
        "train_flops": training["train_flops"],
        "effective_depth": model["h_cycles"] * (model["l_cycles"] + 1) * model["layers"],
        "training_rows": training["rows"],
        "epochs": _finished_rows(history) / puzzles,
        "distinct_rows": puzzles * (1 + min(data["augmentations"], spec_of(data["task"]).most_copies)),
        "wall_seconds": training["wall_seconds"],
        "rows_per_second": training["rows_per_second"],
        "flops_per_second": training["train_flops"] / max(training["wall_seconds"], 1e-9),
        "peak_memory_bytes": training.get("peak_memory_bytes"),
        "utilisation": _utilisation(training),
        "backend": training.get("backend"),
        "workers": training.get("workers", 1),
    }
    columns |= {
        f"validation_{name}": _last(history, f"eval/{name}") for name in ("exact_accuracy", "cross_entropy")
    }
    for target in TARGETS:
        for name, axis in (("steps", "step"), ("seconds", "seconds"), ("flops", "flops")):
            columns[f"{name}_to_{target}"] = first_reach(history, target / 100, axis)
    tail = history.tail(max(2, len(history) // 10))
    for name, source in (("loss_variance", "train/loss"), ("grad_norm_variance", "train/grad_norm")):
        values = tail[source].dropna().to_numpy(float) if source in tail else np.empty(0)
        columns[name] = float(np.var(values, ddof=1)) if len(values) > 1 else None
    placement = config.get("placement") or {}
    for section, fields in (("model", model), ("data", data), ("training", fit), ("placement", placement)):
        columns |= {f"{section}.{key}": text_of(value) for key, value in fields.items()}
    return columns


def first_reach(history: pd.DataFrame, target: float, axis: str) -> float | None:
    """Where a history first reaches the validation accuracy `target`, linear between two measurements.

    Args:
        history: one run's rows, rising in `axis`.
        target: a share.
        axis: column that is read off (step, rows, seconds).

    Returns:
        The place in units of `axis`; None if it is never reached or never measured.
    """
    if "eval/exact_accuracy" not in history:
        return None
    place, value = (history[name].to_numpy(float) for name in (axis, "eval/exact_accuracy"))
    place, value = (column[~np.isnan(place + value)] for column in (place, value))
    above = np.flatnonzero(value >= target)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0 or value[i] == value[i - 1]:
        return float(place[i])
    part = (target - value[i - 1]) / (value[i] - value[i - 1])
    return float(place[i - 1] + part * (place[i] - place[i - 1]))


def _last(history: pd.DataFrame, column: str) -> float | None:
    """The last measurement in a column of the history; None: there is none."""
    known = history[column].dropna().to_numpy(float) if column in history else np.empty(0)
    return float(known[-1]) if len(known) else None


def _finished_rows(history: pd.DataFrame) -> float:
    """Rows that halted, so that their slots took new ones; NaN: not in the history.

    `train/finished` is their number in a step, else a row is offered once for each of its `train/steps`.
    """
    if "train/finished" in history:
        steps = history["step"].diff().fillna(history["step"])
        return float((steps * history["train/finished"]).sum())
    if "train/steps" not in history:
        return float("nan")
    offered = history["rows"].diff().fillna(history["rows"])
    return float((offered / history["train/steps"]).sum())


def _utilisation(training: Mapping[str, Any]) -> float | None:
    """Share of the devices' peak speed that training reached; None if the peak is unknown."""
    name = str(training.get("device_name") or "")
    peak = next((value for part, value in PEAK_FLOPS.items() if part in name), None)
    if peak is None:
        return None
    speed = float(training["train_flops"] / max(training["wall_seconds"], 1e-9))
    return speed / (peak * _devices(training))


def _devices(training: Mapping[str, Any]) -> int:
    return int(training.get("devices") or training.get("workers") or 1)


def _result_rows(
    spec: TableSpec,
    point: TablePoint,
    index: int,
    base: dict[str, Any],
    file: str,
    evaluation: Mapping[str, Any],
    first: bool,
) -> list[dict[str, Any]]:
    """The rows of one evaluation file."""
    settings = evaluation["evaluation"]
    rows = []
    for result in evaluation["results"]:
        exact, seconds = result["exact_accuracy"], result.get("seconds")
        row = {
            "experiment": spec.name,
            "label": _label(point),
            "series": series_of(_label(point)),
            "point": index,
            **{key: text_of(value) for key, value in point.coords.items()},
            "seed": base["seed"],
            "exact_accuracy": exact,
            "error": 1 - exact,
            **{key: result.get(key) for key in MEASURED},
            "split": result["split"],
            "policy": result["policy"],
            "eval_steps": result["steps"],
            "restarts": result.get("restarts", 1),
            **({"solved_counts": text_of(counts)} if (counts := result.get("solved_counts")) else {}),
            "eval_seconds": seconds,
            "eval_puzzles_per_second": result["puzzles"] / seconds if seconds else None,
            "evaluation": _digest(file),
            "evaluation.first": first,
            **{f"evaluation.{key}": text_of(value) for key, value in settings.items()},
        }
        rows.append({**row, **{key: value for key, value in base.items() if key not in row}})
    return rows


def _curve(run: TableRun, history: pd.DataFrame) -> pd.DataFrame:
    """A run's history, thinned evenly; rows with a validation result stay."""
    keep = history.filter(like="eval/").notna().any(axis=1).to_numpy(copy=True)
    keep[np.linspace(0, len(history) - 1, min(CURVE_ROWS, len(history))).round().astype(int)] = True
    thinned = history[keep].copy()
    thinned.insert(0, "run", run.run)
    return thinned
