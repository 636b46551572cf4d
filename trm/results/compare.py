"""Two runs side by side: what differs in their settings, their curves, their results."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.io import differences, read_json
from trm.study.records import HISTORY, TRAINING, check_evaluation, read_training

COSTS = ("parameters", "train_flops", "wall_seconds", "rows_per_second")
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


def compare(first: Path, second: Path) -> str:
    """Settings that differ, costs, results of evaluations that both have, curves at common steps. UserError: a file is
    damaged."""
    try:
        return "\n".join(_lines(first, second))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{first} or {second} holds a damaged file ({error!r}): delete it and run the study again"
        ) from error


def _lines(*runs: Path) -> Iterator[str]:
    one, two = trainings = [read_training(run, (HISTORY,)) for run in runs]
    yield from (f"{letter}  {run.name}" for letter, run in zip("AB", runs))
    changed = differences(one["config"], two["config"])
    yield from ("", "settings that differ", *(_row(key, *pair) for key, pair in changed.items()))
    yield from () if changed else ("  none",)
    yield from ("", "cost", *(_row(key, one[key], two[key]) for key in COSTS))
    ours, theirs = map(_results, runs, trainings)
    for key in sorted(ours.keys() & theirs.keys()):
        yield from ("", f"{' '.join(map(str, key[1:]))} (split policy steps restarts){'B - A':>46}")
        for metric in METRICS:
            a, b = ours[key].get(metric), theirs[key].get(metric)
            if a is not None and b is not None:
                yield f"{_row(metric, a, b)}{b - a:>+14.4g}"
    before, after = (_history(run / HISTORY) for run in runs)
    for name in CURVES:
        common = [step for step, row in before.items() if row.get(name) and after.get(step, {}).get(name)]
        yield from ("", f"{name} by step")
        for step in _thin(common):
            a, b = float(before[step][name]), float(after[step][name])
            yield f"  {step:<32}{a:>18.4g}{b:>18.4g}{b - a:>+14.4g}"


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


def _row(name: str, *values: Any) -> str:
    shown = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in values)
    return f"  {name:<32}" + "".join(f"{text:>18}" for text in shown)


def _thin(points: list[int], most: int = 10) -> list[int]:
    step = max(1, -(-len(points) // most))
    return points[::-1][::step][::-1]
