"""From config/experiments.yaml and a scale to points, runs and evaluations; equal points are one run."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trm.errors import UserError
from trm.study.experiment import Experiment, ExperimentScale, Grid, Scale, StudyFile
from trm.study.fingerprint import canonical_json, evaluation_fingerprint, run_name
from trm.study.merge import LENGTHS, Flat, check_key, flatten, lay, nearest, nest, resolve
from trm.study.reading import error_sentence, parse_yaml
from trm.study.schema import EvaluationConfig, RunConfig, RuntimeConfig
from trm.study.text import count

MOST_RUNS = 20_000
"""A study that asks for more is refused before its runs are resolved: it is a mistake, or needs another tool."""


@dataclass(frozen=True)
class Run:
    """One training run. `name` is its folder and its identity."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Point:
    """One grid point of an experiment: what was varied, and the runs (one a seed) and evaluation that measure it."""

    coords: dict[str, Any]
    label: str
    runs: tuple[Run, ...]
    evaluation: EvaluationConfig

    @cached_property
    def evaluation_file(self) -> str:
        """File name of the evaluation inside each run's folder."""
        return f"evaluation-{evaluation_fingerprint(self.evaluation)[:8]}.json"

    @property
    def evaluations(self) -> list[str]:
        """`<run>/<file>` of the evaluation of each run."""
        return [f"{run.name}/{self.evaluation_file}" for run in self.runs]


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment at one scale."""

    name: str
    definition: Experiment
    points: tuple[Point, ...]
    figures: tuple[dict[str, Any], ...]
    skip: str | None = None
    left_out: tuple[str, ...] = ()
    """What is missing for grids that were left out, in words."""

    def point(self, name: str) -> Point:
        """A grid point by its label, or by a value in its label (`1000` for `train_puzzles=1000`).

        Raises:
            UserError: none or several are meant; the message lists the labels.
        """
        found = [point for point in self.points if point.label == name]
        if not found:
            for point in self.points:
                parts = point.label.split(", ")
                if name in parts or name in [part.partition("=")[2] for part in parts]:
                    found.append(point)
        if len(found) != 1:
            labels = "; ".join(point.label for point in self.points)
            what = f"{len(found)} points match" if found else "no point matches"
            raise UserError(f"{self.name}: {what} {name!r}; there are: {labels}")
        return found[0]


@dataclass
class Study:
    """The whole study at one scale."""

    name: str
    scale_name: str
    scale: Scale
    experiments: dict[str, ResolvedExperiment]
    figures: list[dict[str, Any]]
    aliases: dict[str, str]
    points: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Older documents' name of a point -> its experiment and label."""
    runs: dict[str, Run] = field(default_factory=dict)
    evaluations: dict[str, EvaluationConfig] = field(default_factory=dict)
    log_every: dict[str, int] = field(default_factory=dict)
    """Runs whose experiments ask for finer curves than the scale does."""
    variables: frozenset[str] = frozenset()
    """Names that the study's file reads as `$name` or `needs`; `--config NAME=...` sets them."""
    phases: list[str] = field(default_factory=list)
    """In the order in which a grant is spent."""
    recipe: Flat = field(default_factory=dict)
    """The scale's own recipe, before any experiment: dotted key -> value; what ablations compare with."""

    @property
    def names(self) -> list[str]:
        """Names and aliases of experiments, and those of single points."""
        return [*self.experiments, *self.aliases, *self.points]

    def find(self, name: str) -> tuple[ResolvedExperiment, Point | None]:
        """What a name means: an experiment, or one point of it.

        Raises:
            UserError: an unknown name, or a point that this scale lacks.
        """
        if name not in self.points:
            return self.experiment(name), None
        owner, label = self.points[name]
        experiment = self.experiments[owner]
        return experiment, None if experiment.skip else experiment.point(label)

    def experiment(self, name: str) -> ResolvedExperiment:
        """An experiment by its name or by an older document's id."""
        known = self.aliases.get(name, name)
        if known in self.points:
            owner, label = self.points[known]
            raise UserError(
                f"{name} is one point of {owner} ({label}): `python -m trm study run {name}` runs it"
            )
        if known not in self.experiments:
            hint = nearest(name, self.names)
            raise UserError(
                f"no experiment {name!r} at scale {self.scale_name}{hint} (`python -m trm study list`)"
            )
        return self.experiments[known]

    def why_skipped(self, name: str) -> str:
        """A sentence on an experiment that is not run."""
        return f"{self.experiment(name).name} is not run at scale {self.scale_name}: {self.experiment(name).skip}"

    def selected(self, which: str) -> list[str]:
        """Names of the experiments of `report` or `study` at this scale; skipped ones are left out."""
        names = getattr(self.scale, which) or list(self.experiments)
        return [name for name in names if not self.experiment(name).skip]


def load_study(
    path: str | Path,
    scale: str,
    overrides: dict[str, Any] | None = None,
    variables: dict[str, Any] | None = None,
) -> Study:
    """Read, check and expand the study.

    Args:
        path: config/experiments.yaml.
        scale: key under `scales`.
        overrides: dotted keys merged over every base recipe (`--set`); part of the identity.
        variables: values of `$name` in data.files; an experiment whose variable is unset is skipped.

    Raises:
        UserError: one sentence naming file, experiment and key.
    """
    file = read_study_file(path)
    if scale not in file.scales:
        raise UserError(
            f"{path}: no scale {scale!r}{nearest(scale, file.scales)}; there are {', '.join(file.scales)}"
        )
    return _expand(file, str(path), scale, overrides or {}, variables or {})


def read_study_file(path: str | Path) -> StudyFile:
    """Parse and type-check the file without expanding it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; name the study with --study") from error
    document = parse_yaml(text, str(path))
    if not isinstance(document, dict):
        raise UserError(f"{path}: must be a mapping with study, scales and experiments")
    return parse_study(document, str(path))


def parse_study(document: dict[str, Any], path: str) -> StudyFile:
    """Type-check the document; see `read_study_file`."""
    try:
        return StudyFile.model_validate(document)
    except ValidationError as error:
        raise UserError(f"{path}: {error_sentence(error, StudyFile)}") from error


def _expand(
    file: StudyFile, path: str, scale_name: str, overrides: dict[str, Any], variables: dict[str, Any]
) -> Study:
    scale = file.scales[scale_name]
    base = lay(
        flatten(file.base, f"{path}: base"),
        flatten({"evaluation": dict(scale.evaluation)}, f"{path}: scale {scale_name}: evaluation"),
        flatten(scale.base, f"{path}: scale {scale_name}: base"),
    )
    runtime = {key[8:]: value for key, value in overrides.items() if key.startswith("runtime.")}
    if runtime:
        scale = _with_runtime(scale, runtime)
    forced = flatten({k: v for k, v in overrides.items() if k[:8] != "runtime."}, "--set")
    study = Study(file.study, scale_name, scale, {}, file.figures, {}, variables=_variables_of(file))
    study.phases = file.phases
    _refuse_too_many(file, scale, scale_name, path)
    study.recipe = _recipe(lay(base, forced), f"{path}: scale {scale_name}", forced)
    for name, experiment in file.experiments.items():
        where = f"{path}: experiment {name}"
        for other in experiment.scales:
            if other not in file.scales:
                raise UserError(f"{where}: unknown scale {other!r}{nearest(other, file.scales)}")
        for alias in (*experiment.aliases, *experiment.points):
            if alias in file.experiments or alias in study.aliases or alias in study.points:
                raise UserError(f"{where}: the alias {alias!r} is already a name; choose another")
            if alias in experiment.points:
                study.points[alias] = (name, experiment.points[alias])
            else:
                study.aliases[alias] = name
        study.experiments[name] = _resolve_experiment(
            name, experiment, scale, scale_name, base, forced, variables, where
        )
    for list_name in ("report", "study"):
        for name in getattr(scale, list_name):
            if name not in study.experiments and name not in study.aliases:
                known = nearest(name, [*study.experiments, *study.aliases])
                raise UserError(f"{path}: scale {scale_name}: {list_name}: no experiment {name!r}{known}")
    _collect(study, path)
    return study


def _refuse_too_many(file: StudyFile, scale: Scale, scale_name: str, path: str) -> None:
    """Count the runs of every grid without making them."""
    total = 0
    for name, experiment in file.experiments.items():
        here = experiment.scales.get(scale_name, ExperimentScale())
        if here.skip:
            continue
        seeds = next(value for value in (here.seeds, experiment.seeds, scale.seeds) if value is not None)
        runs = 0
        for grid in (here.grid if here.grid is not None else experiment.grid) or [Grid()]:
            sizes = [len(values) for values in grid.product.values()]
            sizes += [len(next(iter(grid.zip.values())))] if grid.zip else []
            sizes += [len(grid.points)] if grid.points else []
            runs += math.prod(sizes) * len(grid.seeds or seeds)
        total += runs
        if total > MOST_RUNS:
            raise UserError(
                f"{path}: experiment {name} asks for {count(runs, 'run')} at scale {scale_name}, {total:,} with those "
                f"before it; a study may have {MOST_RUNS:,}: shorten its lists"
            )


def _variables_of(file: StudyFile) -> frozenset[str]:
    """Names that the file reads as `$name` or `needs`."""
    found: set[str] = set()

    def visit(value: Any) -> None:
        if isinstance(value, str) and value.startswith("$"):
            found.add(value[1:])
        for item in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        ):
            visit(item)

    visit(file.base)
    for part in (*file.scales.values(), *file.experiments.values()):
        visit(part.model_dump())
    for experiment in file.experiments.values():
        for here in (experiment, *experiment.scales.values()):
            found.update(grid.needs for grid in here.grid or () if grid.needs)
    return frozenset(found)


def _recipe(flat: Flat, where: str, forced: Flat) -> Flat:
    sections = nest(resolve(flat, where))
    measured = _measured(sections.pop("evaluation"), where, forced)
    try:
        config = RunConfig.model_validate(sections).model_dump(mode="json")
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UserError(
            f"{'--set' if key in forced else where}: {error_sentence(error, RunConfig)}"
        ) from error
    config["evaluation"] = measured
    return {
        f"{section}.{key}": value
        for section, values in config.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


def _measured(section: dict[str, Any], where: str, forced: Flat) -> dict[str, Any]:
    try:
        return EvaluationConfig.model_validate(section).model_dump(mode="json")
    except ValidationError as error:
        key = ".".join(("evaluation", *(str(part) for part in error.errors()[0]["loc"])))
        place = "--set: evaluation" if key in forced else f"{where}: evaluation"
        raise UserError(f"{place}: {error_sentence(error, EvaluationConfig)}") from error


def _with_runtime(scale: Scale, changes: dict[str, Any]) -> Scale:
    """The scale with other bookkeeping (`--set runtime.evals=16`), which enters no identity."""
    try:
        runtime = RuntimeConfig.model_validate(scale.runtime.model_dump() | changes)
    except ValidationError as error:
        raise UserError(f"--set runtime: {error_sentence(error, RuntimeConfig)}") from error
    return scale.model_copy(update={"runtime": runtime})


def _resolve_experiment(
    name: str,
    experiment: Experiment,
    scale: Scale,
    scale_name: str,
    base: Flat,
    forced: Flat,
    variables: dict[str, Any],
    where: str,
) -> ResolvedExperiment:
    here = experiment.scales.get(scale_name, ExperimentScale())
    asked: dict[str, Any] = {
        key: value for key in ("question", "hypothesis") if (value := getattr(here, key)) is not None
    }
    if here.hypothesis is not None:
        asked["hypothesis_needs"] = here.hypothesis_needs
    experiment = experiment.model_copy(update=asked)
    grids = (here.grid if here.grid is not None else experiment.grid) or []
    seeds = next(value for value in (here.seeds, experiment.seeds, scale.seeds) if value is not None)
    figures = here.figures if here.figures is not None else experiment.figures
    if here.skip:
        return ResolvedExperiment(name, experiment, (), tuple(figures), here.skip)
    common = lay(
        base,
        flatten(experiment.set or {}, where),
        flatten(here.set or {}, where),
        flatten({"evaluation": dict(experiment.evaluation or {})}, f"{where}: evaluation"),
        flatten({"evaluation": dict(here.evaluation or {})}, f"{where}: evaluation"),
    )
    common, unset = _fill_variables(common, variables)
    if unset:
        why = f"needs --config {unset}=PATH"
        return ResolvedExperiment(name, experiment, (), tuple(figures), why)
    points: dict[str, Point] = {}
    left_out = []
    for grid in grids or [Grid()]:
        grid_where = f"{where}: grid"
        if grid.needs and not variables.get(grid.needs):
            left_out.append(f"needs --config {grid.needs}=... for: {_names_text(grid)}")
            continue
        shared = lay(common, flatten(grid.set, grid_where))
        expanded = list(_grid_points(grid, grid_where))
        made = set()
        for coords, label in expanded:
            flat = lay(shared, coords, forced)
            fixed = flatten(grid.set, grid_where)
            if (common_label := grid.label or _values_text(fixed)) and len(grids) > 1:
                label = f"{label} ({common_label})" if label else common_label
            point = _point(flat, fixed | coords, label, grid.seeds or seeds, where)
            key = canonical_json([[run.name for run in point.runs], point.evaluation_file])
            if key in points and len(expanded) > 1 and points[key].coords == point.coords:
                raise UserError(f"{where}: the point {point.label} is listed twice")
            points.setdefault(key, point)
            made.add(key)
        if len(made) < len(expanded):
            _refuse_dead_axes(grid, shared, forced, where)
    _refuse_equal_labels(points.values(), where)
    if not points:
        return ResolvedExperiment(name, experiment, (), tuple(figures), "; ".join(left_out))
    return ResolvedExperiment(name, experiment, tuple(points.values()), tuple(figures), None, tuple(left_out))


def _names_text(grid: Grid) -> str:
    """Which points a grid would make, in words."""
    return "; ".join(label for _, label in _grid_points(grid, "grid")) or "a grid"


def _fill_variables(flat: Flat, variables: dict[str, Any]) -> tuple[Flat, str]:
    """Replace `$name` in data.files; also the name of the first unset variable, or nothing."""
    files = flat.get("data.files") or []
    filled: list[str] = []
    for file in [files] if isinstance(files, str) else files:
        name = str(file)[1:] if str(file).startswith("$") else ""
        if name and not variables.get(name):
            return flat, name
        filled.extend(_paths(str(variables[name])) if name else [file])
    return (flat | {"data.files": filled}, "") if filled else (flat, "")


def _paths(text: str) -> list[str]:
    """Paths separated by commas; one path where a file of the whole name exists."""
    return [text] if Path(text).exists() else text.split(",")


def _grid_points(grid: Grid, where: str) -> Iterator[tuple[Flat, str]]:
    """Coordinates and label of every point of a grid."""
    for key in (*grid.product, *grid.zip):
        check_key(key, where)
    axes = [[{key: value} for value in values] for key, values in grid.product.items()]
    if grid.zip:
        axes.append([dict(zip(grid.zip, row)) for row in zip(*grid.zip.values())])
    if grid.points:
        axes.append(grid.points)
    for axis in axes:
        if not axis:
            raise UserError(f"{where}: an empty list has no points; give it a value or remove it")
    for parts in itertools.product(*axes):
        coords: Flat = {}
        labels = []
        for part in parts:
            values = flatten({key: value for key, value in part.items() if key != "label"}, where)
            labels.append(str(part["label"]) if "label" in part else _values_text(values))
            coords |= values
        yield coords, ", ".join(filter(None, labels))


def _point(flat: Flat, coords: Flat, label: str, seeds: list[int], where: str) -> Point:
    sections = nest(resolve(flat, where))
    evaluation = sections.pop("evaluation")
    label = label or "base"
    try:
        data = with_checksums(sections.pop("data"), where)
        config = RunConfig.model_validate({**sections, "data": data, "seed": seeds[0]})
        measured = EvaluationConfig.model_validate(evaluation)
    except ValidationError as error:
        raise UserError(f"{where}, point {label}: {error_sentence(error, RunConfig)}") from error
    except IndexError:
        raise UserError(f"{where}: no seeds; name at least one") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{where}: duplicate seed in {seeds}")
    runs = []
    for seed in seeds:
        seeded = config.model_copy(update={"seed": seed})
        runs.append(Run(run_name(seeded), seeded))
    return Point(coords, label, tuple(runs), measured)


UNREAD = {
    "model.heads": "the mlp mixer has no attention heads; remove it, or set model.mixer: attention",
}


def _refuse_equal_labels(points: Iterable[Point], where: str) -> None:
    """Marks in a figure are named by the labels of their points."""
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.label, point)
        if other is not point:
            one, two = (_exact(item.coords) for item in (other, point))
            raise UserError(
                f"{where}: two points are labelled {point.label!r}: {one} and {two}; give each its own `label`"
            )


def _exact(values: Flat) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "no values"


def _refuse_dead_axes(grid: Grid, shared: Flat, forced: Flat, where: str) -> None:
    """Refuse an axis along which nothing changes: it would repeat one run under several names."""
    lengths = {f"training.{name}" for name in LENGTHS}
    fixed = {
        *forced,
        *(lengths if lengths & forced.keys() else ()),
    }  # one length set by hand replaces the others
    for key, values in grid.product.items():
        if len(values) > 1 and key not in fixed:
            names = set()
            for value in values:
                point = _point(lay(shared, {key: value}, forced), {}, f"{key}={_text(value)}", [0], where)
                names.add((point.runs[0].name, point.evaluation_file))
            if len(names) < len(values):
                made = count(len(names), "different run")
                reason = UNREAD.get(key, "remove the values that change nothing")
                raise UserError(f"{where}: {key} has {len(values)} values but they make {made}: {reason}")


def with_checksums(data: dict[str, Any], where: str) -> dict[str, Any]:
    """The data section with the checksum of each of its files: a local file's own, or the one given with a remote file
    (`gs://bucket/file.csv#sha256=HEX`).

    Raises:
        UserError: a local file cannot be read, or a remote one has no checksum.
    """
    files = data.get("files") or ()
    if isinstance(files, str):
        files = (files,)
    if not files:
        return data
    if data.get("sha256"):
        return {**data, "files": tuple(files)}
    named = [_named_checksum(str(name), where) for name in files]
    return {**data, "files": tuple(name for name, _ in named), "sha256": tuple(found for _, found in named)}


def _named_checksum(name: str, where: str) -> tuple[str, str]:
    """A file's name without its checksum, and the checksum."""
    if "://" not in name:
        return name, _file_sha256(name, where)
    path, _, checksum = name.partition("#sha256=")
    if re.fullmatch("[0-9a-f]{64}", checksum):
        return path, checksum
    raise UserError(
        f"{where}: {name} is remote: give it as {path}#sha256=... with its checksum, which `python -m trm data "
        f"checksum {path}` prints, or in data.sha256"
    )


def _file_sha256(name: str, where: str) -> str:
    try:
        stat = Path(name).stat()
        return _sha256_of(name, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise UserError(
            f"{where}: data.files: {name}: {error.strerror}; name a file that can be read"
        ) from error


@cache
def _sha256_of(name: str, _mtime: int, _size: int) -> str:
    with open(name, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _collect(study: Study, path: str) -> None:
    for experiment in study.experiments.values():
        here = experiment.definition.scales.get(study.scale_name, ExperimentScale())
        every = here.log_every or experiment.definition.log_every
        for point in experiment.points:
            for run in point.runs:
                if every:
                    study.log_every[run.name] = min(every, study.log_every.get(run.name, every))
                known = study.runs.setdefault(run.name, run)
                if known.config != run.config and known.config.data.files == run.config.data.files:
                    raise UserError(
                        f"{path}: {_collision(experiment.name, run.config, known.config, run.name)}"
                    )
                study.evaluations[f"{run.name}/{point.evaluation_file}"] = point.evaluation


def _collision(experiment: str, config: RunConfig, known: RunConfig, name: str) -> str:
    """Why two configurations have one name, in a sentence."""
    for section in ("model", "data", "training"):
        one, two = (getattr(item, section).model_dump() for item in (config, known))
        for setting, value in one.items():
            if value != two[setting] and setting != "files":
                key = f"{section}.{setting}"
                reason = UNREAD.get(key, "this run does not read it; remove it")
                return f"experiment {experiment}: {key}={value} has no effect (another has {two[setting]}): {reason}"
    return f"experiment {experiment}: two different runs share the name {name}; change either a little"


def _values_text(values: Flat) -> str:
    return ", ".join(f"{key.split('.', 1)[1]}={_text(value)}" for key, value in values.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
