"""Two runs side by side: what differs in their settings, their curves, their results."""

import csv
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.io import differences, read_json
from trm.study.records import HISTORY, TRAINING, check_evaluation, read_training

METRICS = ("exact_accuracy", "accuracy", "blank_accuracy", "cross_entropy", "mean_steps")
CURVES = ("train/loss", "eval/exact_accuracy")


def find_run(name: str, root: str = "results/runs") -> Path:
    """Folder of a finished run by its path, its name, or a part of the name that only one run has. UserError: no run or
    more than one, or a run that is not finished."""
    exact = Path(name) if Path(name).is_dir() else Path(root, name.rstrip("/"))
    found = (
        [exact] if exact.is_dir() else sorted(path for path in Path(root).glob(f"*{name}*") if path.is_dir())
    )
    if len(found) != 1:
        what = "no run" if not found else f"{len(found)} runs"
        raise UserError(
            f"{root}: {what} named {name!r}; `python -m trm study show EXPERIMENT` lists the names"
        )
    if not (found[0] / TRAINING).exists():
        raise UserError(f"{found[0]}: the run is not finished; train it first")
    return found[0]


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Settings that differ, results of evaluations that both have, curves at common steps, costs. UserError: a file is
    damaged."""
    try:
        return _compare(first, second)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{first} or {second} holds a damaged file ({error!r}): delete it and run the study again"
        ) from error


def _compare(*runs: Path) -> dict[str, Any]:
    trainings = [read_training(run, (HISTORY,)) for run in runs]
    one, two = trainings
    first, second = map(_results, runs, trainings)
    ours, theirs = (_history(run / HISTORY) for run in runs)
    results = {
        " ".join(map(str, key)): {name: (row.get(name), second[file, *key].get(name)) for name in METRICS}
        for (file, *key), row in first.items()
        if (file, *key) in second
    }
    curves = {
        name: [
            (step, float(row[name]), float(theirs[step][name]))
            for step, row in ours.items()
            if row.get(name) and theirs.get(step, {}).get(name)
        ]
        for name in CURVES
    }
    costs = ("parameters", "train_flops", "wall_seconds", "rows_per_second")
    return {
        "runs": tuple(run.name for run in runs),
        "settings": differences(one["config"], two["config"]),
        "costs": {key: (one[key], two[key]) for key in costs},
        "results": dict(sorted(results.items())),
        "curves": curves,
    }


def _results(run: Path, training: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """(file, split, policy, steps, restarts) -> what was measured."""
    found = {}
    for path in sorted(run.glob("evaluation-*.json")):
        document = read_json(path)
        check_evaluation(path, document, training)
        for row in document["results"]:
            found[path.name, row["split"], row["policy"], row["steps"], row["restarts"]] = row
    return found


def _history(path: Path) -> dict[int, dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        return {int(row["step"]): row for row in csv.DictReader(handle)}


def text(document: dict[str, Any]) -> str:
    lines = [f"A  {document['runs'][0]}", f"B  {document['runs'][1]}", "", "settings that differ"]
    lines += [
        f"  {key:<32}{_short(a):>18}{_short(b):>18}" for key, (a, b) in document["settings"].items()
    ] or ["  none"]
    lines += ["", "cost"] + [
        f"  {key:<32}{_short(a):>18}{_short(b):>18}" for key, (a, b) in document["costs"].items()
    ]
    for title, metrics in document["results"].items():
        lines += ["", f"{title} (split policy steps restarts){'B - A':>46}"]
        for metric, (a, b) in metrics.items():
            if a is not None and b is not None:
                lines.append(f"  {metric:<32}{_short(a):>18}{_short(b):>18}{b - a:>+14.4g}")
    for name, points in document["curves"].items():
        lines += ["", f"{name} by step"] + [
            f"  {step:<32}{a:>18.4g}{b:>18.4g}{b - a:>+14.4g}" for step, a, b in _thin(points)
        ]
    return "\n".join(lines)


def _thin(points: list[Any], most: int = 10) -> list[Any]:
    step = max(1, -(-len(points) // most))
    return points[::-1][::step][::-1]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
