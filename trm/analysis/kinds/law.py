"""`law`: a metric against one variable, log-log, with the fitted law if the points support one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trm.analysis.labels import FORM_NAMES, label
from trm.analysis.lazy import Axes, Canvas, Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure, FitSpec, Form, Fraction, Metric, Reported
from trm.analysis.words import (
    compact,
    count,
    estimate,
    goal,
    listed,
    measured,
    percent,
    place,
    sentence,
    thing,
    value_name,
)

Fit = dict[str, Any]
"""The content of a fit.json."""
Group = Mapping[str, Any]
"""One of its groups: the fit of one colour."""


class Spec(Figure):
    """Seeds, means and intervals; the law with its ribbon, extrapolation and equation."""

    kind: Literal["law"] = "law"
    reading: ClassVar[str] = (
        "error against the variable on logarithmic axes: a straight line is a power law; a bend is its "
        "floor; dashed is extrapolated"
    )
    x: Column
    y: Metric = "error"
    hue: Column | None = None
    """One colour, and one fit, for each value."""
    fit: Form | Literal["auto"] | None = "auto"
    """Law to fit; null: none, the points alone."""
    envelope: bool = False
    """Fit the law along the lower envelope of all colours (the best error for any x), not one law for each colour."""
    also: tuple[Column, ...] = ()
    """Other variables in which the same runs are fitted; the sentence says in which of them a law holds."""
    reported: tuple[Reported, ...] = ()
    extrapolate: Annotated[float, Field(ge=1)] = 4.0
    """The law is drawn dashed this far beyond the data."""
    target: Fraction | None = None
    """Accuracy whose price in `x` is read off the law."""
    sources: tuple[str, ...] = ()
    """Experiments shown together (with `hue: experiment`, one law each); empty: the figure's own."""

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return self.sources or (experiment,)

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        if self.fit is None:
            return ()
        keys = {key: getattr(self, key) for key in ("y", "where", "target")}
        keys |= {"best": True} if self.envelope else {"hue": self.hue}
        sources = self.experiments(experiment)
        return tuple(FitSpec(experiments=sources, form=self.fit, x=x, **keys) for x in (self.x, *self.also))


# words -------------------------------------------------------------------------------------------------------------


def supported(group: Group) -> bool:
    """Whether the points support a law (a constant is none)."""
    return "forms" in group and group["chosen"] != "constant" and not group["doubts"]


def floor_shown(group: Group) -> bool:
    """Whether the interval of the floor E stays clear of 0: above 1 % of the lowest mean."""
    form = group["forms"][group["chosen"]]
    low = ((form.get("intervals") or {}).get("E") or [0.0])[0]
    return bool(low > 0.01 * min(group["means"]["y"]))


def exponent(form: dict[str, Any], key: str = "a") -> str:
    """An exponent with the sign of the slope: `−0.52 [−0.61, −0.41]`."""
    bounds = (form.get("intervals") or {}).get(key)
    flipped = None if bounds is None or None in bounds else [-bounds[1], -bounds[0]]
    return estimate(-form["parameters"][key], flipped)


def group_sentence(group: Group, x: str, y: str = "error") -> str:
    """One law in words: how fast, over which range, towards which floor; or why none is claimed."""
    over = thing(x)
    if "error" in group:
        return f"No law of {thing(y)} against {over} could be fitted: {group['error']}."
    form = group["forms"][group["chosen"]]
    unit = label(x).unit.split(" per ")[0]
    span = "between {} and {}".format(*map(compact, group["range"][0]))
    if unit and unit not in over:
        span = over_range = f"{span} {unit}"
    else:
        over_range = f"{span} {over}"
    if group["chosen"] == "constant":
        level = measured(y, form["parameters"]["E"], (form.get("intervals") or {}).get("E"))
        return sentence(f"{thing(y)} shows no trend {over_range}: it stays at {level}.")
    if group["doubts"]:
        values = group["means"]["y"]
        verb = "falls" if values[-1] < values[0] else "rises"
        ends = f"{verb} from {measured(y, values[0])} to {measured(y, values[-1])} {over_range}"
        return sentence(f"{thing(y)} {ends}; no power law is claimed: {listed(group['doubts'])}.")
    slope = form["parameters"]["a"]
    verb = "falls" if slope > 0 else "rises"
    text = f"{thing(y)} {verb} as a power law of {over} {span} with exponent {exponent(form)}"
    if group["chosen"] == "power_law":
        change = abs(100 * (1 - 2.0**-slope))
        text += f", {change:.0f} % {'less' if slope > 0 else 'more'} for every doubling"
    elif floor_shown(group):
        floor = measured(y, form["parameters"]["E"], (form.get("intervals") or {}).get("E"))
        text += f", towards a floor of {floor}"
    else:
        text += "; no floor is established (its interval includes 0)"
    return sentence(text) + "." + _predicted(form, y) + _price(form, x)


def law_sentence(fit: Fit, x: str, y: str) -> str:
    """What the fit says, for every colour."""
    parts = []
    for group in fit["groups"]:
        body = group_sentence(group, x, y)
        head = f"At {place(fit['hue'], group['hue'])}, " if fit.get("hue") else ""
        parts.append(head + (body[:1].lower() + body[1:] if head else body))
    return " ".join(parts)


def elsewhere(fits: Sequence[Fit]) -> str:
    """In which other variables the same runs follow a law."""
    parts = []
    for fit in fits:
        group, x = fit["groups"][0], thing(fit["spec"]["x"])
        if supported(group):
            parts.append(f"{x}, exponent {exponent(group['forms'][group['chosen']])}")
        else:
            parts.append(f"{x}, no law ({group.get('error') or listed(group['doubts']) or 'no trend'})")
    return f" The same runs against {'; against '.join(parts)}." if parts else ""


def law_answer(fit: Fit, x: str, y: str) -> str:
    """One sentence: the law's own, or for several colours their exponents side by side."""
    found = [group for group in fit["groups"] if "forms" in group]
    hue = fit.get("hue")
    if not hue or len(found) < 2:
        return law_sentence(fit, x, y).split(" A fit without")[0]
    parts = []
    for group in found:
        where = place(hue, group["hue"]) if hue == "series" else value_name(group["hue"], hue)
        shown = exponent(group["forms"][group["chosen"]]) if supported(group) else "no law"
        parts.append(f"{shown} at {where}")
    held = sum(map(supported, found))
    if not held:
        return sentence(f"{thing(y)} follows no supported law of {thing(x)} for any {label(hue).name}.")
    return sentence(
        f"{thing(y)} follows a power of {thing(x)} for {held} of {count(len(found), 'value')} of {label(hue).name}: "
        f"{', '.join(parts)}."
    )


def _predicted(form: dict[str, Any], y: str) -> str:
    out = form.get("held_out") or {}
    if not out.get("interval"):
        return ""
    shown = measured(y, out["predicted"], out["interval"])
    return (
        f" A fit without the largest point predicts {shown} there; measured: {measured(y, out['observed'])}."
    )


def _price(form: dict[str, Any], x: str) -> str:
    """What the target accuracy costs."""
    target = form.get("target")
    if not target:
        return ""
    if target["x"] is None:
        return f" By this law {goal(target['accuracy'])} accuracy is never reached."
    low, high = target.get("interval") or [None, None]
    bounds = f" [{compact(low)}, {'∞' if high is None else compact(high)}]" if low else ""
    unit = label(x).unit or thing(x)
    return f" {goal(target['accuracy'])} accuracy needs {compact(target['x'])}{bounds} {unit}."


def equation(group: Group, x: str, y: str = "error", width: int = 72) -> str:
    """The law with its parameters and 95 % intervals, as mathtext in lines of about `width` characters.

    The variable is divided by a round number inside the data, so that A is the error (above the floor) there.
    """
    form = group["forms"][group["chosen"]]
    left, right = label(y).symbol, label(x).symbol
    left = left if left != "x" else "y"
    reference = form.get("reference")
    if reference:
        right = f"({right} / {_mathtext(reference['x'])})"
    floor = "E + " if group["chosen"] == "power_law_floor" else ""
    parts = [f"${left} = {floor}A\\,{right}^{{-a}}$"]
    values, bounds = dict(form["parameters"]), dict(form.get("intervals") or {})
    if reference:
        values["A"], bounds["A"] = reference["A"], reference["interval"]
    for key in ("a", "A", "E"):
        if key in values:
            text = estimate(values[key], bounds.get(key))
            if key != "a" and label(y).percent:
                text = percent(values[key], bounds.get(key))
            parts.append(f"{key} = {text}")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1].replace("$", "").replace("\\", "")) + len(part) > width:
            lines.append(part)
        else:
            lines[-1] += ",  " + part
    return "\n".join(lines)


def _mathtext(value: float) -> str:
    """A round number (1, 2 or 5 times a power of ten) inside a formula."""
    if value < 1e4:
        return f"{value:g}"
    power = int(np.floor(np.log10(value) + 1e-9))
    head = round(value / 10**power)
    return (f"{head}\\cdot" if head != 1 else "") + f"10^{{{power}}}"


def subtitle(fit: Fit | None, x: str, y: str, width: int = 72) -> str:
    """The equation, or why there is none."""
    if fit is None:
        return ""
    if len(fit["groups"]) > 1:
        return "fitted separately for each colour; a line only where the points support a law"
    group = fit["groups"][0]
    if supported(group):
        return equation(group, x, y, width)
    reasons = [group["error"]] if "error" in group else group["doubts"] or ["no trend seen"]
    return common.wrap("no law: " + "; ".join(reasons), width)


def unclaimed(group: Group, name: str) -> str:
    """Why no law is claimed; empty: one is."""
    if "error" in group:
        return f"No {name} could be fitted: {group['error']}."
    return f"No {name} is claimed: {listed(group['doubts'])}." if group["doubts"] else ""


def fit_caption(fit: Fit) -> str:
    """How a law was fitted, and what was left out."""
    forms = [group["forms"][group["chosen"]] for group in fit["groups"] if "forms" in group]
    text = ""
    if any(supported(group) for group in fit["groups"]):
        refits = max((item.get("refits", 0) for item in forms), default=0)
        text = (
            f"Line, ribbon: law with its 95 % interval ({count(refits, 'refit')}), dashed beyond the data"
            f"{spanned([group for group in fit['groups'] if supported(group)])}. "
        )
    reasons: dict[str, int] = {}
    for group in fit["groups"]:
        for item in group["exclusions"]:
            reasons[str(item["why"])] = reasons.get(str(item["why"]), 0) + 1
    if reasons:
        text += "Hollow marks are not fitted: "
        text += "; ".join(f"{count(n, 'run')} ({why})" for why, n in reasons.items()) + ". "
    notes = dict.fromkeys(note for group in fit["groups"] for note in group.get("notes", []))
    return text + "".join(f"{sentence(text)}. " for text in notes)


def spanned(groups: Sequence[Group]) -> str:
    """Which forms the intervals span, if more than the law itself."""
    names = {name for group in groups for name in group.get("spanned", ()) if name != group["chosen"]}
    forms = listed([FORM_NAMES[name] for name in FORM_NAMES if name in names])
    return f"; its intervals also span {forms}, which the points do not rule out" if names else ""


CAPTION = (
    "Faint marks: seeds. Strong marks: their geometric mean with its 95 % interval from the seed spread pooled "
    "over the points. Grey bars: binomial 95 % interval of the test set. "
)


# drawing -----------------------------------------------------------------------------------------------------------


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """The law figure of one experiment."""
    table = common.merge(tables, spec.experiments(tables[0].experiment))
    specs = spec.fits(table.experiment)
    fit, *others = [common.fit_of(fits, wanted) for wanted in specs] if specs else (None,)
    spec = coloured(spec, table)
    figure, axes = common.canvas(common.ONE, 3.0)
    rows = panel(axes[0, 0], spec, table, fit)
    common.hue_legend(figure, spec.hue, {}, axes[0, 0].get_legend_handles_labels()[0])
    return drawing(
        figure,
        rows,
        fit,
        title=title_of(spec),
        lines=subtitle(fit, spec.x, spec.y),
        sentence=law_sentence(fit, spec.x, spec.y) + elsewhere(others) if fit else plain_sentence(rows, spec),
        answer=law_answer(fit, spec.x, spec.y) if fit else "",
    )


def drawing(
    figure: Canvas, rows: pd.DataFrame, fit: Fit | None, caption: str = "", **words: Any
) -> common.Drawing:
    """A figure of one fit: its caption says how the law was fitted, its numbers are the fit's."""
    return common.Drawing(
        figure,
        rows,
        caption=CAPTION + caption + (fit_caption(fit) if fit else ""),
        strength=strength(fit),
        numbers={"fit": summary(fit)} if fit else {},
        carried=sum(group["runs"] for group in fit["groups"]) if fit else None,
        **words,
    )


def title_of(spec: Any) -> str:
    """`Error against unique training puzzles`."""
    return sentence(f"{thing(spec.y)} against {thing(spec.x)}")


def plain_sentence(rows: pd.DataFrame, spec: Any) -> str:
    """The ends of the range, if no law is fitted."""
    means = rows.groupby(spec.x)[spec.y].mean()
    first, last = (measured(spec.y, float(value)) for value in (means.iloc[0], means.iloc[-1]))
    return sentence(f"{thing(spec.y)} goes from {first} to {last} over the range.")


FALL = 1.5
"""Most strength of a fall without a form: an effect, but never a better finding than a law."""


def _fall(group: Group) -> float:
    """The change between the ends over half the width of its 95 % interval, at most FALL."""
    means, spread = group["means"], group.get("seed_spread")
    if not spread or group["chosen"] == "constant":
        return 0.0
    error = 2.2 * spread * (1 / means["seeds"][0] + 1 / means["seeds"][-1]) ** 0.5
    return float(min(FALL, abs(np.log(means["y"][-1] / means["y"][0])) / error))


def strength(fit: Fit | None) -> float | None:
    """Exponent over half the width of its interval, of the law that is best determined; else of the fall itself."""
    found = []
    for group in fit["groups"] if fit else []:
        if supported(group):
            form = group["forms"][group["chosen"]]
            bounds = form["intervals"].get("a") or form["intervals"].get("b")
            slope = form["parameters"].get("a", form["parameters"].get("b", 0.0))
            found.append(abs(slope) / max(1e-9, (bounds[1] - bounds[0]) / 2))
        elif "means" in group and len(group["means"]["x"]) == 1:
            found.append(_fall(group))
    return max(found, default=None)


def summary(fit: Fit) -> list[dict[str, Any]]:
    """The part of a fit that the report quotes: no curves."""
    short = []
    for group in fit["groups"]:
        item = {key: value for key, value in group.items() if key not in ("forms", "means", "exclusions")}
        if "forms" in group:
            best = group["forms"][group["chosen"]]
            keys = ("parameters", "enough_points", "aicc", "held_out", "intervals")
            item |= {key: best.get(key) for key in keys}
        short.append(item)
    return short


def coloured(spec: Any, table: Table) -> Any:
    """The spec with the hue that its table calls for, if it names none."""
    return common.with_hue(spec, table, table.select(spec.where, [spec.x]), [spec.x])


def panel(axes: Axes, spec: Any, table: Table, fit: Fit | None, *, curves: bool = True) -> pd.DataFrame:
    """Draw one law into `axes`; returns the rows shown. `scaling_laws` and `prediction` draw their panels by it.

    Args:
        spec: with the hue that `coloured` gives it.
        curves: draw the law of each colour that supports one.
    """
    rows: pd.DataFrame = common.rows_of(table, spec.where, spec.y, spec.x, spec.hue)
    x = rows[spec.x].to_numpy(float) + label(spec.x).offset
    y = common.positive(rows, spec.y)
    keep: np.ndarray = (x > 0) & (y > 0)
    rows, x = rows.loc[keep], x[keep]
    shades, means, (low, high) = marks(axes, rows, x, spec.hue, fit, spec.y)
    for group in fit["groups"] if fit and curves else []:
        if supported(group):
            colour = "black" if spec.envelope else shades[group["hue"] if spec.hue else None]
            _curve(axes, group, colour, spec.extrapolate, 1.0 if spec.y == "error" else np.inf)
    if spec.envelope:
        envelope(axes, means)
    for point in spec.reported:
        axes.plot(point.x, point.y, "*", color=common.GREY, markersize=9, zorder=5)
        common.note(axes, point.label, (point.x, point.y), (-6, 3), ha="right")
        low, high = min(low, point.y), max(high, point.y)
    axes.set_xscale("log" if label(spec.x).log else "linear")
    common.axis_scale(axes, "x", label(spec.x), x)
    if label(spec.y).log:
        common.error_scale(axes, spec.y, low, high)
    else:
        common.axis_scale(axes, "y", label(spec.y), np.array([low, high]))
    return rows


def marks(
    axes: Axes, rows: pd.DataFrame, x: np.ndarray, hue: str | None, fit: Fit | None, metric: str = "error"
) -> tuple[dict[Any, str], np.ndarray, tuple[float, float]]:
    """Seeds and means at places x [N], one colour for each value of `hue`; hollow if the fit excludes all of a point.

    Returns:
        The colours; place and geometric mean of each point [P, 2]; the range to show.
    """
    is_error = metric == "error"
    rows = rows.assign(_x=x, _y=common.positive(rows, metric))
    rows["_point"] = rows.groupby([*([hue] if hue else []), "_x"], dropna=False).ngroup()
    means = stats.pooled_log_intervals(
        rows["_y"].to_numpy(), rows["_point"].to_numpy(), most=1.0 if is_error else np.inf
    )
    items = [item for group in (fit["groups"] if fit else []) for item in group["exclusions"]]
    rows["_out"] = rows["run"].isin([item["run"] for item in items])
    if items and len(items[0]["x"]) == 1:  # a run may have a row for each evaluation setting
        out = {(item["run"], item["x"][0]) for item in items}
        rows["_out"] = [pair in out for pair in zip(rows["run"], x)]
    parts = common.groups(rows, hue)
    shades = common.colours(list(parts))
    span = float(np.log(x.max() / x.min())) or 1.0
    shared = len(means) > len(np.unique(x))  # two colours at one place
    shifts = common.dodge(len(parts), span if shared else 0.0)
    low, high = float(rows["_y"].min()), float(rows["_y"].max())
    places = []
    for index, (value, part) in enumerate(parts.items()):
        marker, colour = common.MARKERS[index % 8], shades[value]
        for key, here in part.groupby("_point", sort=True):
            mean, at = means[key], float(here["_x"].iloc[0])
            place = at * shifts[index]
            if is_error:
                tested = float(here["puzzles"].iloc[0])
                bounds = common.binomial_bar(axes, place, mean.value, tested)
                low, high = min(low, max(bounds[0], 0.25 / tested)), max(high, bounds[1])
            if mean.bounds:
                low, high = min(low, mean.bounds[0]), max(high, mean.bounds[1])
            common.seed_marks(
                axes,
                place,
                here["_y"],
                colour,
                marker,
                seeds_at=place * np.exp(-0.012 * span),
                summary=mean,
                hollow=bool(here["_out"].all()),
            )
            places.append((at, mean.value))
        if hue:
            common.entry(axes, common.hue_name(hue, value), marker=marker, color=colour)
    return shades, np.array(places), (low, high)


def envelope(axes: Axes, means: np.ndarray) -> None:
    """The best mean at each price, over all colours. means: place and mean of each point [P, 2]."""
    style = {"label": "envelope", "linestyle": ":", "zorder": 6}
    common.frontier(axes, means[:, 0], means[:, 1], -means[:, 1], tolerance=0.0, **style)


def _curve(axes: Axes, group: Group, colour: str, extrapolate: float, most: float) -> None:
    """The stored law with its ribbon, as far beyond the data as the spec says."""
    curve, end = group["forms"][group["chosen"]]["curve"], group["range"][0][1]
    x, y, low, high = (np.array(curve[key], float) for key in ("x", "y", "low", "high"))
    shown = x <= end * extrapolate * (1 + 1e-9)
    low, high = np.minimum(low[shown], most), np.minimum(high[shown], most)
    line(axes, x[shown], y[shown], end, colour, most)
    axes.fill_between(x[shown], low, high, color=colour, alpha=0.14, linewidth=0, zorder=1)


def line(axes: Axes, x: np.ndarray, y: np.ndarray, end: float, colour: str, most: float = 1.0) -> None:
    """A law at places x, solid up to `end` and dashed beyond, cut off at `most`."""
    y = np.minimum(y, most)
    inside, beyond = x <= end * (1 + 1e-9), x >= end * (1 - 1e-9)
    axes.plot(x[inside], y[inside], color=colour, linewidth=1.2, zorder=3)
    axes.plot(x[beyond], y[beyond], color=colour, linestyle=common.DASHES[1], linewidth=1.1, zorder=3)


# laws of two variables ---------------------------------------------------------------------------------------------


def parameters(group: Group, formula: str, *keys: str) -> str:
    """A formula and its parameters, or why no law is claimed; for the heading of a law of two variables."""
    if not supported(group):
        return common.wrap(
            "no law: " + "; ".join([group["error"]] if "error" in group else group["doubts"]), 72
        )
    form = group["forms"][group["chosen"]]
    values, bounds = form["parameters"], form.get("intervals") or {}
    parts = [f"{key} = {estimate(values[key], bounds.get(key))}" for key in keys]
    floor = "E not established (its interval includes 0)"
    if floor_shown(group):
        floor = f"E = {percent(values['E'], bounds.get('E'))}"
    return f"{formula}\n" + ",  ".join([*parts, floor])
