"""`regime`: error against training compute by puzzles and by size, with sigmoids over a floor, and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trm.analysis.claims import Claim, verdict_on
from trm.analysis.kinds import law
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Figure, FitSpec, Place
from trm.analysis.words import compact, count, listed, measured, number

X, SIZE, DATA = "train_flops", "parameters", "data.train_puzzles"


class Spec(Figure):
    """Left: one colour a number of puzzles. Middle: one colour a size. Right: predictions with their intervals."""

    kind: Literal["regime"] = "regime"
    reading: ClassVar[str] = (
        "lines: all forms averaged; right: intervals of what was predicted, stars what came"
    )
    until: Annotated[float, Field(gt=0)] | None = None
    """Most training FLOPs of a run that is fitted; larger runs are held out and predicted. Null: fit all."""
    places: tuple[Place, ...] = ()
    """Further runs to predict, as published ones."""
    level: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Of every interval."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        options: dict[str, Any] = {"until": self.until, "places": self.places, "level": self.level}
        fit = FitSpec(experiments=(experiment,), form="regime", x=X, second=SIZE, where=self.where, **options)
        return (fit,)


def claims(group: Mapping[str, Any]) -> list[Claim]:
    """What is predicted at every place, and the floors."""
    if "error" in group:
        what = listed(["training compute", "parameters", "puzzles"])
        return [Claim("error", what, "", float("nan"), None, "none", "change", more=group["error"])]
    forms, level = count(len(group["forms"]), "form"), f"{100 * group['interval']:.0f} %"
    found = []
    for item in group["places"]:
        reach = item["flops"] / group["range"][0][1]
        subject = (
            f"at {item['puzzles']:,} puzzles, {number(item['parameters'])} parameters and {number(item['flops'])} "
            f"FLOPs ({number(reach, 2)} times beyond the fit), {forms} together predict ({level} interval)"
        )
        bounds = (item["interval"][0], item["interval"][1])
        verdict = "single" if item["error"] is None else verdict_on(bounds, item["error"])
        seeds = f", {count(item['seeds'], 'seed')}" if item["seeds"] else ""
        known = "not measured" if item["error"] is None else measured("error", item["error"])
        against = f"{item['label']}: {known}{seeds}"
        found.append(Claim("error", subject, against, item["predicted"], bounds, verdict, "prediction"))
    return found


def remarks(group: Mapping[str, Any]) -> str:
    """The floors, and which forms carry the average."""
    if "error" in group:
        return ""
    floors = [
        f"{measured('error', item['value'], tuple(item['interval']))} at {number(item['puzzles'])} puzzles"
        for item in group["floors"]
    ]
    best = sorted(group["forms"].items(), key=lambda item: -item[1]["weight"])[:3]
    weights = [f"{name} {100 * item['weight']:.0f} %" for name, item in best]
    return f" Error that no compute removes: {listed(floors)}. Weights of the forms: {listed(weights)}."


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    table = tables[0]
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group = fit["groups"][0]
    rows = common.rows_of(table, spec.where, "error", X, SIZE, DATA)
    figure, axes = common.panels(3 if group.get("places") else 2, 2.9)
    base = int(rows[SIZE].mode()[0])
    others = rows[rows[SIZE] != base]
    puzzles = int((others if len(others) else rows)[DATA].max())
    for axis, (hue, fixed, value) in zip(axes, ((DATA, SIZE, base), (SIZE, DATA, puzzles))):
        part = rows[rows[fixed] == value]
        _panel(axis, part, hue, group, value)
        common.heading(axis, f"{compact(value)} {'parameters' if fixed == SIZE else 'puzzles'}")
    if group.get("places"):
        _predictions(axes[2], group["places"])
    caption = (
        "Large marks: means of seeds. Lines: sigmoids of training compute and size over a floor that the puzzles "
        "leave, averaged over the forms by their Akaike weights; dashed beyond the fitted runs. Right: diamond and "
        "line: the average and its interval; ticks: every form; star: what was measured. "
    )
    return common.Drawing(
        figure,
        rows,
        title="Compute, size and puzzles where every puzzle recurs",
        caption=caption,
        claims=claims(group),
        remarks=remarks(group),
        numbers={"regime": group},
        carried=group["runs"],
    )


def _panel(axes: Axes, rows: pd.DataFrame, hue: str, group: Mapping[str, Any], fixed: float) -> None:
    from trm.analysis.fits.regime import averaged

    cost = rows[X].to_numpy(float)
    end = group["range"][0][1] if "range" in group else cost.max()
    parts = common.groups(rows, hue)
    places = np.geomspace(cost.min() / 1.3, cost.max() * 1.3, 80)
    for index, (value, colour) in enumerate(common.colours(list(parts)).items()):
        for at, here in parts[value].groupby(X):
            mean = stats.Mean(float(here["error"].mean()), None, len(here))  # no interval from two seeds
            marker = common.MARKERS[index % 8]
            common.seed_marks(axes, float(str(at)), here["error"], colour, marker, summary=mean)
        if "forms" in group:
            size, puzzles = (fixed, value) if hue == DATA else (value, fixed)
            law.line(axes, places, averaged(group, places, size, puzzles), end, colour)
        common.entry(axes, compact(value), marker=common.MARKERS[index % 8], color=colour)
    common.axis_scale(axes, "x", label(X), cost)
    common.axis_scale(axes, "y", label("error"), np.array([0.0, 1.0]), log=False)
    axes.set_ylim(0.0, 1.03)
    axes.legend(title=label(hue).name, loc="lower left", fontsize=common.SMALL, title_fontsize=common.SMALL)


def _predictions(axes: Axes, places: Sequence[Mapping[str, Any]]) -> None:
    """One line a place: interval, mean, every form's own value faint, and a star for what was measured."""
    for row, item in enumerate(places):
        axes.plot(item["interval"], [row, row], color=common.OKABE_ITO[0], linewidth=1.6)
        for value in item["forms"].values():
            axes.plot(value, row, "|", color=common.GREY, markersize=6, alpha=0.6)
        axes.plot(item["predicted"], row, "D", color=common.OKABE_ITO[0], markersize=4.5)
        if item["error"] is not None:
            axes.plot(item["error"], row, "*", color=common.OKABE_ITO[1], markersize=9, zorder=5)
    axes.set_yticks(range(len(places)), [common.wrap(item["label"], 18) for item in places])
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    common.axis_scale(axes, "x", Label("error", percent=True), np.array([0.0, 1.0]), log=False)
    common.heading(axes, "Predicted and measured")
