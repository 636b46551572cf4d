"""What is refused of a figure before anything runs: metrics that no run records, values that no point has, axes and
measurements from which nothing can be drawn. Imports no numpy."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from trm.analysis.axes import SHOWN, hue_of_law, is_value, series_of, text_of
from trm.analysis.specs import EQUAL, LEAST
from trm.analysis.words import listed
from trm.errors import UserError
from trm.pipeline.catalogue import Figure
from trm.study import flops
from trm.study.dataset_identity import shape
from trm.study.merge import SECTIONS, nearest
from trm.study.points import Point
from trm.study.schema import RunConfig
from trm.study.tasks import spec_of
from trm.training.history import COLUMNS

MEASURED = {"restarts": "restarts", "unroll": "unroll", "frontier": "unroll", "steps": "traces"}
"""Kind of figure -> the key of `evaluation` without which it has nothing to draw."""
AXES = {"law": ("x",), "ablation": ("x",), "heatmap": ("x", "y"), "isoflop": ("best", "equal")}
"""Kind of figure -> its fields that name a column of which it compares values."""


def check_figure(figure: Figure, points: Sequence[Point], study: str) -> None:
    """Refuse a figure of which nothing could be drawn after the runs.

    Args:
        points: those of its experiments.
        study: the study's file.

    Raises:
        UserError: names the figure, the fault and, if there are any, the values or names that would do.
    """
    for check in (_names, _where, _baseline, _measured, _axes):
        if fault := check(figure, points):
            raise UserError(f"{study}: figure {figure.stem}: {fault}")
        if check is _where:
            points = [point for point in points if _has(point, figure.spec.where)]


def _sizes(config: RunConfig) -> tuple[int, int]:
    sizes = shape(config.data)
    return sizes.seq_len, sizes.vocab_size


COMPUTED: dict[str, Callable[[RunConfig], float]] = {
    "train_flops": lambda config: flops.train_flops(config.model, config.training, *_sizes(config)),
    "parameters": lambda config: flops.parameters(config.model, *_sizes(config)),
    "effective_depth": lambda config: (
        config.model.h_cycles * (config.model.l_cycles + 1) * config.model.layers
    ),
}
"""Derived columns that follow from the configuration of a run."""


RESULT = ("split", "policy", "eval_steps", "restarts")
"""Columns that tell the results of an evaluation apart."""


def values_at(point: Point, column: str) -> list[Any]:
    """The values of a column at a grid point; empty: they are known after the runs."""
    config, measured = point.runs[0].config, point.evaluation
    known: dict[str, list[Any]] = {"label": [point.label], "series": [series_of(point.label)]}
    known |= {"seed": [run.config.seed for run in point.runs]}
    if column in known:
        return known[column]
    if column in (rows := _rows(point))[0]:
        return list(dict.fromkeys(row[column] for row in rows))
    if column in COMPUTED:
        return [COMPUTED[column](config)]
    section, _, key = column.partition(".")
    if section not in SECTIONS or key not in SECTIONS[section].model_fields:
        return []
    return [text_of(getattr(measured if section == "evaluation" else getattr(config, section), key))]


def _rows(point: Point) -> list[dict[str, Any]]:
    """What tells the results of an evaluation of the point apart."""
    config, measured = point.runs[0].config, point.evaluation
    own, data = (config.model.halt_max_steps,), config.data
    depths, steps = measured.unroll or own, (measured.steps or own[0],)
    copies = data.augmentations if measured.copies is None else min(measured.copies, data.augmentations)
    results: list[tuple[tuple[Any, ...], ...]] = [
        (("test",), ("fixed", "confident")[: 1 + measured.confident], depths, (1,)),
        (("test",), ("restarts", "majority", "oracle"), steps, measured.restarts),
        (("test",), ("vote_first", "vote"), steps, (1 + copies,) * spec_of(data.task).votes),
        (("train",), ("fixed",), depths, (1,) * bool(measured.train_puzzles)),
    ]
    return [dict(zip(RESULT, row)) for result in results for row in product(*result)]


def _has(point: Point, where: Mapping[str, Any]) -> bool:
    """Whether a point has a result with all values of `where`, as far as they are known."""
    return any(
        all(
            any(is_value(value, wanted) for value in known)
            for name, wanted in where.items()
            if (known := [row[name]] if name in row else values_at(point, name))
        )
        for row in _rows(point)
    )


def _is_text(column: str) -> bool:
    """Whether a column holds words, as labels and names do."""
    section, _, key = column.partition(".")
    return column == "label" or isinstance(getattr(getattr(RunConfig(), section, None), key, None), str)


def _names(figure: Figure, points: Sequence[Point]) -> str:
    """Curves that no run records, and laws over words."""
    for column in (name for fit in figure.fits for name in (fit.spec.x, fit.spec.second) if name):
        if _is_text(column):
            return f"{column} is not a number: no law or optimum can be fitted over it"
    spec: Any = figure.spec
    known = [name for name in COLUMNS if "/" in name]
    for column in list(getattr(spec, "metrics", ())) + ([spec.metric] if spec.kind == "curves" else []):
        if column not in known:
            return f"unknown metric {column!r}{nearest(column, known)}; history.csv has {', '.join(known)}"
    return ""


def _where(figure: Figure, points: Sequence[Point]) -> str:
    """A `where` that no point has."""
    where = figure.spec.where
    for column, wanted in where.items():
        known = [value for point in points for value in values_at(point, column)]
        if known and not any(is_value(value, wanted) for value in known):
            names = [name for name in dict.fromkeys(map(str, known)) if name]
            close = nearest(str(wanted), names)
            return f"where: no point has {column}={wanted}{close}; {column} is {', '.join(names) or 'empty'}"
    if points and not any(_has(point, where) for point in points):
        wanted = listed([f"{column}={value}" for column, value in where.items()])
        return f"where: no point has {wanted} together: remove one of them"
    shown = SHOWN | where
    of_results = figure.spec.kind not in ("frontier", "restarts") and set(where) & set(RESULT)
    if points and of_results and not any(_has(point, shown) for point in points):
        wanted = listed([f"{column}={shown[column]}" for column in RESULT if column in shown])
        return f"where: no result has {wanted}: name the policy or the split that is meant"
    return ""


def _baseline(figure: Figure, points: Sequence[Point]) -> str:
    """A baseline that no point has."""
    x, baseline = getattr(figure.spec, "x", ""), getattr(figure.spec, "baseline", None)
    values = [str(value) for point in points for value in values_at(point, x)]
    if baseline is None or not values or str(baseline) in values:
        return ""
    known = ", ".join(dict.fromkeys(values))
    return f"no point has the baseline {baseline!r}{nearest(str(baseline), values)}; {x} is {known}"


def _measured(figure: Figure, points: Sequence[Point]) -> str:
    """What no point measures."""
    kind, by = figure.spec.kind, getattr(figure.spec, "by", "")
    key = MEASURED.get(kind, "")
    if points and key and not any(getattr(point.evaluation, key) for point in points):
        return f"a figure of kind {kind} needs evaluation.{key}: set it"
    data = [point.runs[0].config.data for point in points]
    if kind == "votes" and data and not any(spec_of(item.task).votes for item in data):
        return "a figure of kind votes needs data.task=arc: remove it"
    known = {name for item in data for name in spec_of(item.task).sorted_by(item)}
    if kind == "bins" and data and by not in known:
        remedy = f"write `by: {known.pop()}`" if known else "remove it"
        return f"the test puzzles of {data[0].task} with these settings do not differ in {by}: {remedy}"
    return ""


def _axes(figure: Figure, points: Sequence[Point]) -> str:
    """Comparisons of a single value, laws over several axes, and parabolas through too few points."""
    spec: Any = figure.spec
    keys = (
        ["training.batch_size"]
        if spec.kind == "batch"
        else [getattr(spec, x) for x in AXES.get(spec.kind, ())]
    )
    for x in keys:
        values = {str(value) for point in points for value in values_at(point, x)}
        if len(values) == 1:
            return f"every point has {x}={values.pop()}: add values of {x} to the grid"
    if spec.kind == "law" and not spec.envelope:
        return _law(points, spec.x, spec.hue)
    return _parabola(points, spec.best, spec.equal) if spec.kind == "isoflop" else ""


def _law(points: Sequence[Point], x: str, hue: str | None) -> str:
    """Why a law of `x` does not hold for the points of one hue; empty: it may."""
    names = list(dict.fromkeys(key for point in points for key in point.coords))
    shown = [*names, "series", *filter(None, [hue])]
    known = [{name: values_at(point, name) or point.coords.get(name) for name in shown} for point in points]
    if hue and not all(item[hue] for item in known):
        return ""
    try:
        hue_of_law([{**item, "point": at} for at, item in enumerate(known)], names, x, hue)
    except UserError as error:
        return str(error)
    return ""


def _parabola(points: Sequence[Point], best: str, equal: str) -> str:
    """Too few values of `best` at each value of `equal`."""
    pairs = [(y, x) for point in points for y in values_at(point, equal) for x in values_at(point, best)]
    most, found, least = 0, set[Any](), math.nan
    for y, x in sorted(pairs, key=lambda pair: pair[0]):
        if not y <= (least * EQUAL if "." not in equal else least):
            least, found = y, set()
        found.add(x)
        most = max(most, len(found))
    if not pairs or most >= LEAST:
        return ""
    return (
        f"a parabola needs {LEAST} values of {best} at one value of {equal}, and the grid has {most} at most: add "
        "some, or draw another kind of figure"
    )
