"""Expand a study at a scale into points, runs and evaluations; equal points are one run."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trm.errors import UserError
from trm.study.experiment import SHARED, Experiment, Grid, Scale, StudyFile, inherit
from trm.study.fingerprint import canonical_json, run_names
from trm.study.input_files import fill_variables, with_checksums
from trm.study.merge import LENGTHS, Flat, check_key, flatten, merge_layers, nearest, resolve, sections
from trm.study.points import Point, ResolvedExperiment, Run, Study
from trm.study.reading import NO_FORMULA, error_sentence, first_error, read_with_lines, validated
from trm.study.schema import EvaluationConfig, RunConfig, RuntimeConfig
from trm.study.text import count

MOST_RUNS = 20_000
"""A larger study is refused before its runs are resolved: it is a mistake, or needs another tool."""

Places = dict[tuple[str, ...], str]
"""`FILE:LINE` of the keys of a study, by their path."""


def load_study(
    path: str | Path,
    scale: str = "",
    overrides: dict[str, Any] | None = None,
    variables: dict[str, Any] | None = None,
) -> Study:
    """Read, validate and expand a study.

    Args:
        path: config/experiments.yaml, config/laptop.yaml or another one.
        scale: key under `scales`; empty: the first.
        overrides: dotted keys merged over every point (`--set`); part of the identity.
        variables: values of `$name` in data.files; an experiment whose variable is not set is skipped.

    Raises:
        UserError: one sentence naming file, experiment and key.
    """
    file, places = read_study(path)
    scale = scale or next(iter(file.scales))
    if scale not in file.scales:
        raise UserError(
            f"{path}: no scale {scale!r}{nearest(scale, file.scales)}; there are {', '.join(file.scales)}"
        )
    return _expand(
        Study(file, str(path), scale, file.scales[scale], places), overrides or {}, variables or {}
    )


def read_study(path: str | Path) -> tuple[StudyFile, dict[tuple[str, ...], str]]:
    """A study's file with what it inherits, its settings as dotted keys, and `FILE:LINE` of its keys."""
    document, places = _mapping(path)
    if "extends" in document:
        source = Path(path).parent / str(document["extends"])
        parent, theirs = _mapping(source)
        if "extends" in parent:
            raise UserError(f"{path}: extends {source}, which extends another study: name that one")
        _typed_file(parent, source, theirs)
        inherit(document, parent)
        places = {keys: place for keys, place in theirs.items() if keys[-1] in SHARED} | places
    return _dotted(_typed_file(document, path, places), path, places), places


def _mapping(path: str | Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The document of a study, whose experiments are mappings, and `FILE:LINE` of its keys."""
    document, lines = read_with_lines(path, "name the study with --study")
    experiments = document.get("experiments") if isinstance(document, dict) else None
    if not isinstance(experiments, dict) or not all(isinstance(own, dict) for own in experiments.values()):
        raise UserError(
            f"{path}: must be a mapping with name, scales and experiments, each experiment a mapping"
        )
    return document, {keys: f"{path}:{line}" for keys, line in lines.items()}


def _typed_file(document: dict[str, Any], path: str | Path, places: Places) -> StudyFile:
    try:
        return StudyFile.model_validate(document)
    except ValidationError as error:
        keys = tuple(str(part) for part in first_error(error)["loc"])
        place = next((places[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in places), path)
        raise UserError(f"{place}: {error_sentence(error, StudyFile)}") from error


def _dotted(file: StudyFile, path: str | Path, places: Places) -> StudyFile:
    """The file with all settings as dotted keys, which are known ones; an experiment's `evaluation` is in its `set`."""
    experiments = {}
    for name, experiment in file.experiments.items():
        line = places.get(("experiments", name, "grid")) or places.get(("experiments", name)) or path
        where = f"{line}: experiment {name}"
        grids = [_dotted_grid(grid, f"{where}: grid") for grid in experiment.grid]
        evaluation = flatten({"evaluation": experiment.evaluation}, f"{where}: evaluation")
        own = {"set": flatten(experiment.set, where) | evaluation, "evaluation": {}, "grid": grids}
        experiments[name] = experiment.model_copy(update=own)
    base = flatten(file.base, f"{path}: base")
    return file.model_copy(update={"base": base, "experiments": experiments})


def _dotted_grid(grid: Grid, where: str) -> Grid:
    for key in (*grid.product, *grid.zip):
        check_key(key, where)
    points = [
        flatten({key: value for key, value in point.items() if key != "label"}, where)
        | {key: value for key, value in point.items() if key == "label"}
        for point in grid.points
    ]
    return grid.model_copy(update={"set": flatten(grid.set, where), "points": points})


def _expand(study: Study, overrides: dict[str, Any], variables: dict[str, Any]) -> Study:
    file, path = study.file, study.path
    runtime = {key[8:]: value for key, value in overrides.items() if key.startswith("runtime.")}
    scale = study.scale
    study.scale = scale.model_copy(update={"runtime": _runtime(scale, runtime, "--set runtime")})
    forced = flatten({key: value for key, value in overrides.items() if key[:8] != "runtime."}, "--set")
    _refuse_too_many(study)
    study.recipe = _recipe(file.base, f"{path}: base")
    if forced:
        study.recipe = _recipe(merge_layers(file.base, forced), "--set")
    for name in file.experiments:
        study.experiments[name] = _resolve_experiment(study, name, forced, variables)
    for list_name in ("report", "study"):
        for name in getattr(file, list_name):
            if name not in study.experiments:
                raise UserError(
                    f"{path}: {list_name}: no experiment {name!r}{nearest(name, study.experiments)}"
                )
    _collect(study, runtime)
    return study


def _refuse_too_many(study: Study) -> None:
    """Count the runs of every grid without resolving them."""
    total = 0
    for name, experiment in study.file.experiments.items():
        runs = 0
        for grid in experiment.grid:
            sizes = [len(values) for values in grid.product.values()]
            sizes += [len(next(iter(grid.zip.values())))] if grid.zip else []
            sizes += [len(grid.points)] if grid.points else []
            runs += math.prod(sizes) * len(_seeds(study, experiment, grid))
        total += runs
        if total > MOST_RUNS:
            raise UserError(
                f"{study.path}: experiment {name} has {count(runs, 'run')}, {total:,} with those before it; a study "
                f"may have {MOST_RUNS:,}: shorten its lists"
            )


def _seeds(study: Study, experiment: Experiment, grid: Grid) -> list[int]:
    return next(seeds for seeds in (grid.seeds, experiment.seeds, study.scale.seeds) if seeds is not None)


def _recipe(flat: Flat, where: str) -> Flat:
    """Every field of a run and its evaluation as dotted keys, defaults included."""
    run, evaluation = typed(flat, 0, where)
    sections = run.model_dump(mode="json", exclude={"seed"}) | {
        "evaluation": evaluation.model_dump(mode="json")
    }
    return {f"{name}.{key}": value for name, fields in sections.items() for key, value in fields.items()}


def _runtime(scale: Scale, changes: dict[str, Any], where: str) -> RuntimeConfig:
    """The scale's `runtime` with other values (`--set runtime.evals=16`), which are not part of any identity."""
    return validated(RuntimeConfig, scale.runtime.model_dump() | changes, where)


def _resolve_experiment(
    study: Study, name: str, forced: Flat, variables: dict[str, Any]
) -> ResolvedExperiment:
    experiment, where = study.file.experiments[name], f"{study.place(name, 'grid')}: experiment {name}"
    resolved = ResolvedExperiment(name, experiment, study.place(name, "grid"), study.place(name, "figures"))
    common, unset = fill_variables(merge_layers(study.file.base, experiment.set), variables)
    if unset:
        return replace(resolved, skip=f"needs --config {unset}=PATH")
    points: dict[str, Point] = {}
    left_out = []
    for grid in experiment.grid:
        grid_where = f"{where}: grid"
        if why := _unwanted(grid, study, variables, grid_where):
            labels = "; ".join(label for _, label in _grid_points(grid, grid_where))
            left_out.append(f"{why} for: {labels or 'a grid'}")
            continue
        shared = merge_layers(common, grid.set)
        expanded = list(_grid_points(grid, grid_where))
        made = set()
        for coords, label in expanded:
            if (common_label := grid.label or _values_text(grid.set)) and len(experiment.grid) > 1:
                label = f"{label} ({common_label})" if label else common_label
            seeds = _seeds(study, experiment, grid)
            point = _forced_point(shared, coords, forced, grid.set | coords, label, seeds, where)
            key = canonical_json([[run.name for run in point.runs], point.evaluation_file])
            if key in points and len(expanded) > 1 and points[key].coords == point.coords:
                raise UserError(f"{where}: the point {point.label} is listed twice")
            points.setdefault(key, point)
            made.add(key)
        if len(made) < len(expanded):
            _refuse_dead_axes(grid, shared, forced, where)
        _refuse_replaced(grid.set, [coords for coords, _ in expanded], f"{grid_where}: set")
    _refuse_equal_labels(points.values(), where)
    if not left_out:
        _refuse_replaced(experiment.set, [point.coords for point in points.values()], where)
        if experiment.seeds is not None and all(grid.seeds is not None for grid in experiment.grid):
            raise UserError(f"{where}: every grid has seeds of its own: remove the experiment's")
    skip = None if points else "; ".join(left_out)
    return replace(
        resolved, points=tuple(points.values()), skip=skip, left_out=tuple(left_out if points else ())
    )


def _unwanted(grid: Grid, study: Study, variables: dict[str, Any], where: str) -> str:
    """Why a grid is left out here; empty if it is not."""
    scales = study.file.scales
    if grid.scale and grid.scale not in scales:
        raise UserError(f"{where}: unknown scale {grid.scale!r}{nearest(grid.scale, scales)}")
    if grid.scale not in (None, study.scale_name):
        return f"at scale {grid.scale} only"
    return f"needs --config {grid.needs}=..." if grid.needs and not variables.get(grid.needs) else ""


def _grid_points(grid: Grid, where: str) -> Iterator[tuple[Flat, str]]:
    """Coordinates and label of every point of a grid."""
    axes: list[tuple[str, list[dict[str, Any]]]] = [
        ("product", [{key: value} for value in values]) for key, values in grid.product.items()
    ]
    if grid.zip:
        axes.append(("zip", [dict(zip(grid.zip, row)) for row in zip(*grid.zip.values())]))
    if grid.points:
        axes.append(("points", [dict(point) for point in grid.points]))
    owners: dict[str, str] = {}
    for name, axis in axes:
        if not axis:
            raise UserError(f"{where}: an empty list has no points; give it a value or remove it")
        for key in dict.fromkeys(key for part in axis for key in part if key != "label"):
            if (other := owners.setdefault(key, name)) != name:
                raise UserError(f"{where}: {key} is in `{other}` and in `{name}`: keep one")
    for parts in itertools.product(*(axis for _, axis in axes)):
        coords: Flat = {}
        labels = []
        for part in parts:
            values = {key: value for key, value in part.items() if key != "label"}
            labels.append(str(part["label"]) if "label" in part else _values_text(values))
            coords |= values
        yield coords, ", ".join(filter(None, labels))


def typed(flat: Flat, seed: Any, where: str, label: str = "") -> tuple[RunConfig, EvaluationConfig]:
    """Dotted keys as typed configurations, with derived keys resolved.

    Raises:
        UserError: names `where`, the point's `label`, and the key.
    """
    run, place = sections(resolve(flat, where)), f"{where}, point {label}" if label else where
    measured = run.pop("evaluation")
    config = validated(RunConfig, {**run, "seed": seed}, place)
    return config, validated(EvaluationConfig, measured, f"{place}: evaluation")


def _point(flat: Flat, coords: Flat, label: str, seeds: list[int], where: str) -> Point:
    label = label or "base"
    if not seeds:
        raise UserError(f"{where}: no seeds; name at least one")
    config, measured = typed(with_checksums(flat, where), seeds[0], where, label)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{where}: duplicate seed in {seeds}")
    try:
        names = run_names(config, seeds)
    except UserError as error:  # no data set can have this combination of fields
        raise UserError(f"{where}, point {label}: {error}") from error
    seeded = (config.model_copy(update={"seed": seed}) for seed in seeds)
    return Point(coords, label, tuple(map(Run, names, seeded)), measured)


def _forced_point(
    shared: Flat, values: Flat, forced: Flat, coords: Flat, label: str, seeds: list[int], where: str
) -> Point:
    """`_point` with the values of the command line; an error that they alone cause names them instead of the file."""
    try:
        return _point(merge_layers(shared, values, forced), coords, label, seeds, where)
    except UserError as error:
        if not forced:
            raise
        _point(merge_layers(shared, values), coords, label, seeds, where)
        given = ",".join(f"{key}={_text(value)}" for key, value in forced.items())
        raise UserError(f"--set {given}: {error}") from error


NO_EFFECT = {"model.heads": "the mlp mixer has no attention heads; remove it, or set model.mixer: attention"}


def _refuse_equal_labels(points: Iterable[Point], where: str) -> None:
    """Labels name the marks in figures."""
    seen: dict[str, Point] = {}
    for point in points:
        if "$" in point.label:
            raise UserError(f"{where}: label {point.label!r}: {NO_FORMULA}")
        other = seen.setdefault(point.label, point)
        if other is not point:
            one, two = (
                ", ".join(f"{key}={value}" for key, value in item.coords.items()) or "no values"
                for item in (other, point)
            )
            raise UserError(
                f"{where}: two points are labelled {point.label!r}: {one} and {two}; give each its own `label`"
            )


def _refuse_replaced(given: Flat, points: list[Flat], where: str) -> None:
    """Refuse a value that no point keeps."""
    lengths = {f"training.{name}" for name in LENGTHS}
    for key in given:
        others = lengths if key in lengths else {key}
        if key == "training.lr_rule":
            others = {"training.lr_rule", "training.lr"}  # a point's rate is in place of both
        if points and all(others & point.keys() for point in points):
            raise UserError(f"{where}: every point has its own value in place of {key}: remove it")


def _refuse_dead_axes(grid: Grid, shared: Flat, forced: Flat, where: str) -> None:
    """Refuse an axis along which nothing changes."""
    lengths = {f"training.{name}" for name in LENGTHS}
    # one forced length replaces the others
    fixed = forced.keys() | (lengths if lengths & forced.keys() else set())
    for key, values in grid.product.items():
        if len(values) > 1 and key not in fixed:
            names = set()
            for value in values:
                point = _point(
                    merge_layers(shared, {key: value}, forced), {}, f"{key}={_text(value)}", [0], where
                )
                names.add((point.runs[0].name, point.evaluation_file))
            if len(names) < len(values):
                made = count(len(names), "different run")
                reason = NO_EFFECT.get(key, "remove the values that change nothing")
                raise UserError(f"{where}: {key} has {len(values)} values but they make {made}: {reason}")


def _collect(study: Study, forced: dict[str, Any]) -> None:
    """`forced`: values of `runtime` from the command line. A run that experiments share has the finest curves."""
    for experiment in study.experiments.values():
        changes, where = experiment.definition.runtime, f"{study.place(experiment.name, 'runtime')}: runtime"
        runtime = _runtime(study.scale, changes | forced, where)
        for point in experiment.points:
            for run in point.runs:
                other = study.runtime.setdefault(run.name, runtime)
                every, evals = min(other.log_every, runtime.log_every), max(other.evals, runtime.evals)
                study.runtime[run.name] = other.model_copy(update={"log_every": every, "evals": evals})
                known = study.runs.setdefault(run.name, run)
                if known.config != run.config and known.config.data.files == run.config.data.files:
                    raise UserError(
                        f"{study.path}: {_collision(experiment.name, run.config, known.config, run.name)}"
                    )
                study.evaluations[f"{run.name}/{point.evaluation_file}"] = point.evaluation


def _collision(experiment: str, config: RunConfig, known: RunConfig, name: str) -> str:
    """Why two configurations have the same name."""
    for part in ("model", "data", "training"):
        one, two = (getattr(item, part).model_dump() for item in (config, known))
        for setting, value in one.items():
            if value != two[setting] and setting != "files":
                key = f"{part}.{setting}"
                reason = NO_EFFECT.get(key, "this run does not read it; remove it")
                return f"experiment {experiment}: {key}={value} has no effect (another has {two[setting]}): {reason}"
    return f"experiment {experiment}: two different runs share the name {name}; change either a little"


def _values_text(values: Flat) -> str:
    return ", ".join(f"{key.split('.', 1)[1]}={_text(value)}" for key, value in values.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
