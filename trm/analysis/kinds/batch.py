"""`batch`: steps, puzzles and FLOPs to the targets against batch size; critical batch; gradient noise scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.labels import TARGETS, Label, label
from trm.analysis.laws import findings_of_fit, supported
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Figure, FitSpec
from trm.analysis.words import noun, number, sentence, value_name

X = "training.batch_size"
NOISE_SCALE = "train/noise_scale"
PRICES = {
    "steps": ("Steps", Label("steps", log=True)),
    "rows": ("Puzzles", Label("puzzles offered", log=True)),
    "flops": ("Compute", Label("training compute", "FLOPs", log=True)),
}
"""What reaching a target costs, and the words of its panel."""


class Spec(Figure):
    """Four panels: steps, puzzles and FLOPs to the targets, and throughput; without the first three, accuracy."""

    kind: Literal["batch"] = "batch"
    reads: ClassVar[tuple[str, ...]] = ("curves",)
    reading: ClassVar[str] = (
        "what a target costs at each batch size: the critical batch is where the curve leaves the line of perfect "
        "scaling; accuracy instead, if no run reaches a target"
    )

    @property
    def histories(self) -> tuple[str, ...]:
        return (NOISE_SCALE,)

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        law = FitSpec(experiments=(experiment,), form="critical_batch", x=X, where=self.where)
        return tuple(law.model_copy(update={"y": f"steps_to_{target}"}) for target in TARGETS)


def reached(target: int, rows: pd.DataFrame) -> str:
    """At which batch sizes not every seed reaches the target, in per cent."""
    known = rows[f"steps_to_{target}"].notna()
    if not known.any():
        return f"No batch size reaches {target} % validation accuracy."
    counts = known.groupby(rows[X]).agg(["sum", "size"])
    partly = counts[counts["sum"] < counts["size"]]
    shown = ", ".join(
        f"{value_name(float(str(at)))} ({some} of {every})" for at, (some, every) in partly.iterrows()
    )
    return f"Not every seed reaches {target} % at batch size {shown}." if shown else ""


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """All four panels; one mark for each setting, one colour for each target."""
    table = tables[0]
    rows = table.select(spec.where, [X])
    rows = rows.assign(**{f"rows_to_{target}": rows[f"steps_to_{target}"] * rows[X] for target in TARGETS})
    wanted = [common.fit_of(fits, item) for item in spec.fits(table.experiment)]
    hue = table.implied_hue(spec.where, X)
    parts = common.groups(rows, hue)
    texts = [reached(target, part) for part in parts.values() for target in TARGETS]
    if not rows[[f"steps_to_{target}" for target in TARGETS]].notna().any(axis=None):
        return common.Drawing(
            _without_targets(rows, hue, parts),
            rows,
            title="Batch size",
            caption="No run reached a target. Seeds faint, means strong.",
            findings=[finding for fit in wanted for finding in findings_of_fit(fit)],
            remarks=" ".join(filter(None, texts)),
        )
    figure, grid = common.canvas(common.TWO, 5.0, 2, 2)
    axes = grid.ravel()
    handles: list[Any] = []
    for colour, target, fit in zip(common.OKABE_ITO, TARGETS, wanted):
        for index, (value, part) in enumerate(parts.items()):
            group = next(item for item in fit["groups"] if not hue or item["hue"] == value)
            for axis, name in zip(axes, PRICES):
                _marks(axis, part, f"{name}_to_{target}", colour, common.MARKERS[index])
            if supported(group):
                _law(axes[0], axes[1], group, part[X].to_numpy(float), colour)
        handles.append(common.entry(axes[0], f"to {target} % validation accuracy", color=colour))
    for index, value in enumerate(parts if hue else ()):
        style: dict[str, Any] = {"color": common.GREY, "marker": common.MARKERS[index], "linestyle": "none"}
        handles.append(common.entry(axes[0], common.hue_name(hue or "", value), **style))
    common.legend(figure, handles, 2 if hue else 4)
    for size, part in stats.by_number(rows[rows["rows_per_second"].notna()], X):
        common.seed_marks(axes[3], size, part["rows_per_second"], common.OKABE_ITO[2], seeds_at=0.95 * size)
    scale = noise_scale(rows, table.curves)
    for axis in axes[:2] if scale else ():
        axis.axvline(scale, color=common.GREY, linewidth=0.8, zorder=1)
    for axis, (name, (title, text)) in zip(axes, PRICES.items()):
        common.heading(axis, f"{title} to the target")
        means = rows.groupby(X)[[f"{name}_to_{target}" for target in TARGETS]].mean()
        _scales(axis, rows, text, means.to_numpy(float).ravel())
    common.heading(axes[3], "Throughput")
    _scales(axes[3], rows, label("rows_per_second"), rows["rows_per_second"].to_numpy(float))
    measured = "measured between micro-batches in the last half of training"
    texts += [f"The gradient noise scale is about {number(scale, 2)} puzzles ({measured})."] if scale else []
    return common.Drawing(
        figure,
        rows,
        title="Batch size",
        caption=(
            "Hollow: not every seed reaches the target. Lines: S = Smin (1 + B*/B), where the points support it. "
            "Vertical: gradient noise scale."
        ),
        findings=[finding for fit in wanted for finding in findings_of_fit(fit)],
        remarks=" ".join(filter(None, texts)),
    )


def _without_targets(rows: pd.DataFrame, hue: str | None, parts: Mapping[Any, pd.DataFrame]) -> Any:
    """Accuracy and throughput, where no price of a target is known."""
    figure, axes = common.panels(2, 2.6)
    shades = common.colours(list(parts))
    for axis, column in zip(axes, ("exact_accuracy", "rows_per_second")):
        common.heading(axis, sentence(noun(column)))
        for index, (value, part) in enumerate(parts.items()):
            for size, here in stats.by_number(part[part[column].notna()], X):
                mean = common.mean_of(here[column], column, float(here["puzzles"].iloc[0]))
                style: dict[str, Any] = {"seeds_at": 0.95 * size, "summary": mean}
                common.seed_marks(axis, size, here[column], shades[value], common.MARKERS[index % 8], **style)
        _scales(axis, rows, label(column), rows[column].to_numpy(float))
    common.hue_legend(figure, hue, shades)
    return figure


def _scales(axes: Axes, rows: pd.DataFrame, text: Label, values: np.ndarray) -> None:
    common.axis_scale(axes, "x", label(X), rows[X], log=True)
    if np.isfinite(values).any():
        common.axis_scale(axes, "y", text, values)
    else:
        style: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "color": common.GREY}
        axes.text(0.5, 0.5, "no run reached a target", **style)


def _marks(axes: Axes, rows: pd.DataFrame, column: str, colour: str, marker: str) -> None:
    for batch, part in stats.by_number(rows, X):
        mean = stats.mean(part[column])
        if mean.n:
            summary = mean.clipped(0.2 * mean.value, np.inf)
            style: dict[str, Any] = {"summary": summary, "hollow": mean.n < len(part)}
            common.seed_marks(axes, batch, [mean.value], colour, marker, **style)


def _law(steps: Axes, rows: Axes, group: dict[str, Any], batches: np.ndarray, colour: str) -> None:
    """The fitted tradeoff in both forms."""
    values = group["forms"]["critical_batch"]["parameters"]
    places = np.geomspace(batches.min(), batches.max(), 60)
    needed = values["Smin"] * (1 + values["B*"] / places)
    steps.plot(places, needed, color=colour, linewidth=1.2)
    rows.plot(places, needed * places, color=colour, linewidth=1.2)


def noise_scale(rows: pd.DataFrame, curves: pd.DataFrame) -> float | None:
    """tr(Sigma) / |G|^2 (arXiv 1812.06162, eq. 2.9) as training measured it between micro-batches: median over each
    run's last half, geometric mean over runs; None: not measured."""
    if NOISE_SCALE not in curves:
        return None
    logged = curves[curves["run"].isin(rows["run"])].dropna(subset=NOISE_SCALE)
    halves = [part.iloc[len(part) // 2 :].median() for _, part in logged.groupby("run")[NOISE_SCALE]]
    known = [half for half in halves if half > 0]
    return float(np.exp(np.mean(np.log(known)))) if known else None
