"""`batch`: steps, puzzles and FLOPs to the targets against batch size; critical batch; gradient noise scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from trm.analysis.labels import Label, label
from trm.analysis.laws import of_fit, supported
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure, FitSpec, Fraction
from trm.analysis.words import goal, number, value_name


class Spec(Figure):
    """Four panels: steps, puzzles and FLOPs to the targets, and throughput."""

    kind: Literal["batch"] = "batch"
    reads: ClassVar[tuple[str, ...]] = ("curves",)
    reading: ClassVar[str] = "the critical batch is where the curve leaves the line of perfect scaling"
    targets: tuple[Fraction, ...] = (0.80, 0.85)
    """Validation accuracies counted to."""
    x: Column = "training.batch_size"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        law = FitSpec(
            experiments=(experiment,), form="critical_batch", x=self.x, y="steps_to_target", where=self.where
        )
        return tuple(law.model_copy(update={"target": target}) for target in self.targets)


def reached(target: float, costs: Sequence[stats.Cost]) -> str:
    """At which batch sizes not every seed reaches the target."""
    if not any(cost.reached for cost in costs):
        return f"No batch size reaches {goal(target)} validation accuracy."
    partly = [cost for cost in costs if cost.reached < cost.runs]
    shown = ", ".join(f"{value_name(cost.batch)} ({cost.reached} of {cost.runs})" for cost in partly)
    return f"Not every seed reaches {goal(target)} at batch size {shown}." if partly else ""


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """All four panels; one mark for each setting, one colour for each target."""
    table = tables[0]
    rows = table.select(spec.where, [spec.x])
    wanted = [common.fit_of(fits, item) for item in spec.fits(table.experiment)]
    hue = table.implied_hue(spec.where, spec.x)
    parts = common.groups(rows, hue)
    figure, grid = common.canvas(common.TWO, 5.0, 2, 2)
    axes = grid.ravel()
    handles: list[Any] = []
    known: dict[Any, dict[float, list[stats.Cost]]] = {value: {} for value in parts}
    for colour, target, fit in zip(common.OKABE_ITO, spec.targets, wanted):
        for index, (value, part) in enumerate(parts.items()):
            found = known[value][target] = stats.costs(part, table.curves, target, spec.x)
            group = next(item for item in fit["groups"] if not hue or item["hue"] == value)
            for axis, field in zip(axes, ("steps", "rows", "flops")):
                _marks(axis, found, field, colour, common.MARKERS[index])
            if supported(group):
                _law(axes[0], axes[1], group, part[spec.x].to_numpy(float), colour)
        handles.append(common.entry(axes[0], f"to {goal(target)} validation accuracy", color=colour))
    for index, value in enumerate(parts if hue else ()):
        style: dict[str, Any] = {"color": common.GREY, "marker": common.MARKERS[index], "linestyle": "none"}
        handles.append(common.entry(axes[0], common.hue_name(hue or "", value), **style))
    common.legend(figure, handles, 2 if hue else 4)
    for size, part in stats.by_number(rows[rows["rows_per_second"].notna()], spec.x):
        common.seed_marks(axes[3], size, part["rows_per_second"], common.OKABE_ITO[2], seeds_at=0.95 * size)
    scales = _noise(rows, table, spec)
    for value, _ in scales:
        for axis in axes[:2]:
            axis.axvline(value, color=common.GREY, linewidth=0.8, linestyle=":", zorder=1)
    every = [cost for found in known.values() for item in found.values() for cost in item]
    panels: tuple[tuple[str, Label, Any], ...] = (
        ("Steps to the target", Label("steps", log=True), [cost.steps.value for cost in every]),
        ("Puzzles to the target", Label("puzzles offered", log=True), [cost.rows.value for cost in every]),
        (
            "Compute to the target",
            Label("training compute", "FLOPs", log=True),
            [cost.flops.value for cost in every],
        ),
        ("Throughput", label("rows_per_second"), rows["rows_per_second"].to_numpy(float)),
    )
    for axis, (title, name, values) in zip(axes, panels):
        common.heading(axis, title)
        common.axis_scale(axis, "x", label(spec.x), np.sort(rows[spec.x].unique().astype(float)), log=True)
        if np.isfinite(values).any():
            common.axis_scale(axis, "y", name, values)
        else:
            style = {"transform": axis.transAxes, "ha": "center", "color": common.GREY}
            axis.text(0.5, 0.5, "no run reached a target", **style)
    texts = [reached(target, costs) for found in known.values() for target, costs in found.items()]
    texts += [
        f"The gradient noise scale is about {number(value, 2)} puzzles ({how})." for value, how in scales
    ]
    return common.Drawing(
        figure,
        rows,
        title="Batch size",
        caption=(
            "Mean over the seeds that reach the target, with Student's 95 % interval; hollow: not every seed does. "
            "Lines: S = Smin (1 + B*/B) fitted to the steps, and the puzzles it implies (arXiv 1812.06162), where "
            "the points support it. Dotted: gradient noise scale."
        ),
        claims=[claim for fit in wanted for claim in of_fit(fit)],
        remarks=" ".join(filter(None, texts)),
        numbers={"noise_scale": scales},
    )


def _marks(axes: Axes, found: list[stats.Cost], field: str, colour: str, marker: str) -> None:
    for cost in found:
        mean = getattr(cost, field)
        if mean.n:
            summary = mean.clipped(0.2 * mean.value, np.inf)
            hollow = cost.reached < cost.runs
            common.seed_marks(axes, cost.batch, [mean.value], colour, marker, summary=summary, hollow=hollow)


def _law(steps: Axes, rows: Axes, group: dict[str, Any], batches: np.ndarray, colour: str) -> None:
    """The fitted tradeoff in both forms."""
    values = group["forms"]["critical_batch"]["parameters"]
    places = np.geomspace(batches.min(), batches.max(), 60)
    needed = values["Smin"] * (1 + values["B*"] / places)
    steps.plot(places, needed, color=colour, linewidth=1.2)
    rows.plot(places, needed * places, color=colour, linewidth=1.2)


def _noise(rows: pd.DataFrame, table: Table, spec: Spec) -> list[tuple[float, str]]:
    """The noise scale and how it was measured: logged in training if it was, else from gradient norms."""
    logged = stats.logged_noise_scale(rows, table.curves, spec.x)
    if logged:
        centre = float(np.exp(np.mean([np.log(item.value) for _, item in logged])))
        return [(centre, "measured between micro-batches in the last half of training")]
    estimates = stats.noise_scale(rows, table.curves, spec.x)
    if not estimates:
        return []
    part, value = estimates[-1]
    return [
        (value, f"estimated from gradient norms at {100 * part:.0f} % of training: order of magnitude only")
    ]
