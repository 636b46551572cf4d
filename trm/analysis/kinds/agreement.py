"""`agreement`: runs that should be identical, overlaid, and how far each is from the first grid point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from trm.analysis.labels import HISTORY, Label
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import Figure
from trm.analysis.words import number, point_name
from trm.errors import UserError

LEAST = 1e-9
"""Where a difference of exactly 0 is drawn."""
CLOSE = 4e-3
"""Largest relative difference at the first measurement at which two curves count as the same: bfloat16's rounding."""


class Spec(Figure):
    """Curves overlaid, and their relative differences."""

    kind: Literal["agreement"] = "agreement"
    reads: ClassVar[tuple[str, ...]] = ("curves",)
    reading: ClassVar[str] = (
        "the curves lie on each other; below, differences that begin at rounding and grow in training"
    )
    metrics: tuple[str, ...] = ("train/loss", "train/grad_norm")
    """Columns of history.csv, one column of panels each."""

    @property
    def histories(self) -> tuple[str, ...]:
        return self.metrics


class Agreement(NamedTuple):
    """How one grid point compares with the first."""

    name: str
    start: Mapping[str, float]
    """Metric -> relative difference at the first measurement, before training has amplified anything."""
    largest: Mapping[str, float]
    """Metric -> largest relative difference over the whole run."""

    @property
    def agrees(self) -> bool:
        """Whether the point starts as the first one does, to rounding."""
        return max(self.start.values(), default=0.0) <= CLOSE


def agreement_sentence(parts: Sequence[Agreement]) -> str:
    """Differences of each point from the first."""
    first, *others = parts
    texts = []
    for part in others:
        if not part.largest:
            texts.append(f"{part.name} shares no seed with {first.name}: not compared.")
        elif max(part.largest.values()) == 0:
            texts.append(f"{part.name} is bit-identical to {first.name}.")
        else:
            texts.append(f"{part.name} {'agrees' if part.agrees else 'does not agree'} with {first.name}.")
            texts += [
                f"Its {metric} differs by {number(100 * part.start[metric], 2)} % at the first measurement, later by "
                f"at most {number(100 * part.largest[metric], 2)} %."
                for metric in part.largest
            ]
    return " ".join(texts)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Above: the curves. Below: their relative difference from the first grid point's, seed by seed."""
    table = tables[0]
    rows = table.select(spec.where)
    names = common.ordered(rows["label"])
    for column in spec.metrics:
        if column not in table.curves:
            raise UserError(f"no history of {table.experiment} has a column {column}")
    if len(names) < 2:
        raise UserError(f"{table.experiment} has one grid point: nothing to compare it with")
    shades = common.colours(names)
    figure, axes = common.canvas(common.TWO, 4.2, 2, len(spec.metrics), sharex="col", height_ratios=[3, 2])
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in names}
    for place, column in enumerate(spec.metrics):
        text = HISTORY.get(column, Label(column.replace("/", " ").replace("_", " ")))
        for name, item in _panels(axes[0, place], axes[1, place], table, rows, column, text, shades).items():
            found[name][text.name] = item
    common.hue_legend(figure, "label", shades, columns=3, dashed=True)
    parts = []
    for name in names:
        start, largest = ({metric: item[i] for metric, item in found[name].items()} for i in (0, 1))
        parts.append(Agreement(point_name(name), start, largest))
    return common.Drawing(
        figure,
        rows,
        title="The same run, computed in other ways",
        caption=(
            f"Above: every seed's curve. Below: its difference from the same seed at {point_name(names[0])}; 0 "
            f"is drawn at {LEAST:g}."
        ),
        remarks=agreement_sentence(parts),
    )


def _panels(
    above: Axes,
    below: Axes,
    table: Table,
    rows: pd.DataFrame,
    column: str,
    text: Label,
    shades: dict[Any, str],
) -> dict[str, tuple[float, float]]:
    """Draw one metric; returns each point's relative difference at the start, and the largest one."""
    histories = {run: part.set_index("step")[column].dropna() for run, part in table.curves.groupby("run")}
    first, *others = shades
    lines = {
        name: {int(run["seed"]): histories[run["run"]] for _, run in part.iterrows()}
        for name, part in rows.groupby("label", sort=False)
    }
    seen = []
    for index, name in enumerate(shades):
        for line in lines[name].values():
            width, alpha = (2.2, 0.35) if name == first else (0.8, 0.9)
            style: dict[str, Any] = {"color": shades[name], "linestyle": common.DASHES[index % 4]}
            above.plot(line.index, line, linewidth=width, alpha=alpha, **style)
            seen.append(line.to_numpy(float))
    found: dict[str, tuple[float, float]] = {}
    for name in others:
        start, largest = [], []
        for seed in lines[name].keys() & lines[first].keys():
            reference, line = lines[first][seed], lines[name][seed]
            steps = reference.index.intersection(line.index)
            if not len(steps):
                continue
            apart = (line[steps] - reference[steps]).abs().to_numpy(float)
            away = apart / np.maximum(reference[steps].abs().to_numpy(float), LEAST)
            below.plot(steps, np.maximum(away, LEAST), color=shades[name], linewidth=0.8)
            start.append(float(away[0]))
            largest.append(float(away.max()))
        if largest:
            found[name] = (max(start), max(largest))
    common.axis_scale(above, "y", text, np.concatenate(seen))
    common.axis_scale(below, "x", Label("training step"), log=False)
    below.set_yscale("log")
    below.set_ylabel("Relative difference")
    return found
