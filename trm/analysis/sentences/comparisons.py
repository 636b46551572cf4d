"""Sentences that compare grid points: ablations, interactions, curves, heat maps, frontiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trm.analysis.labels import label
from trm.analysis.stats.intervals import Mean
from trm.analysis.words import count, interval, listed, memory, number, percent, percents, value_name


def points(share: float | None, bounds: Sequence[float] | None = None) -> str:
    """A difference of shares in percentage points: `+3.1 [1.0, 5.2]`."""
    if share is None or share != share:
        return "–"
    text = ("+" if share > 0 else "") + number(100 * share, 2 if abs(share) < 0.1 else 3)
    return text + interval(bounds, 2, 100)


def difference(name: str, baseline: str, change: Mean, column: str) -> str:
    """One comparison in words: better, worse or no certain difference, with its interval."""
    text = label(column)
    if text.percent:
        size, unit = points(abs(change.value)).lstrip("+"), "percentage points"
    else:
        size, unit = number(abs(change.value), 3), text.unit
    bounds = interval(_ordered(change), 2, 100 if text.percent else 1)
    if change.n < 2 or change.bounds is None:
        way = "above" if change.value > 0 else "below"
        said = _joined("lies", size, unit, way) if change.value else "equals"
        return f"{name} {said} {baseline} (one pair of seeds: no interval)"
    if change.sign == 0:
        return f"{name} does not differ certainly from {baseline} ({_joined(_signed(change, text.percent), unit)})"
    way = "above" if change.sign > 0 else "below"
    return _joined(name, "lies", size + bounds, unit, way, baseline)


def _joined(*words: str) -> str:
    """Words with a space between them; a pure number has no unit."""
    return " ".join(word for word in words if word)


def _ordered(change: Mean) -> tuple[float, float] | None:
    """Interval of the size of a difference."""
    if change.bounds is None:
        return None
    low, high = change.bounds
    return (low, high) if change.value >= 0 else (-high, -low)


def _signed(change: Mean, share: bool) -> str:
    if share:
        return points(change.value, change.bounds)
    return ("+" if change.value > 0 else "") + number(change.value) + interval(change.bounds)


def ablation_sentence(
    changes: Mapping[str, Mean], baseline: str, column: str, level: float | None = None
) -> str:
    """All values against the baseline."""
    if not changes:
        return f"Only {baseline} was measured: nothing to compare."
    start = f"With {baseline}, {label(column).name} is " + (
        (percent(level) if label(column).percent else _joined(number(level), label(column).unit))
        if level is not None
        else "–"
    )
    known = [difference(name, baseline, change, column) for name, change in changes.items() if change.n]
    lost = [name for name, change in changes.items() if not change.n]
    text = f"{start}; {'; '.join(known)}." if known else f"{start}."
    if lost:
        text += f" No seed in common with {listed(lost)}: not compared."
    return text


def ablation_answer(
    changes: Mapping[Any, Mapping[str, Mean]],
    baseline: str,
    column: str,
    crossed: Sequence[Mapping[str, Any]],
) -> str:
    """One sentence: the largest certain difference, how many others there are, and whether they hold elsewhere.

    changes: for each place (batch or model size; None: only one) the differences by name.
    """
    first = next(iter(changes.values()), {})
    known = {name: change for name, change in first.items() if change.n}
    if not known:
        return f"Nothing was measured beside {baseline}."
    sure = {name: change for name, change in known.items() if change.sign}
    if sure:
        name = max(sure, key=lambda key: abs(sure[key].value))
        text = difference(name, baseline, sure[name], column)
        others = len(known) - 1
        if others:
            also = len(sure) - 1
            if others == 1:
                text += f"; the other one {'differs too' if also else 'does not differ certainly'}"
            else:
                verb = "differs" if also == 1 else "differ"
                text += f"; of {others} others, {also or 'none'} {verb} certainly"
    else:
        largest = max(known, key=lambda key: abs(known[key].value))
        text = difference(largest, baseline, known[largest], column)
        if len(known) > 1:
            text = f"No value differs certainly from {baseline}; the largest difference: {text}"
    tested = [item for item in crossed if item["low"] is not None]
    if tested:
        changed = sum(item["low"] > 0 or item["high"] < 0 for item in tested)
        place = (
            tested[0]["elsewhere"]
            if len({item["elsewhere"] for item in tested}) == 1
            else "the other settings"
        )
        if len(tested) == 1:
            text += f"; at {place} the effect {'changes' if changed else 'does not change certainly'}"
        else:
            text += f"; at {place} {changed or 'none'} of {len(tested)} effects changes certainly"
    return text[:1].upper() + text[1:] + "."


def interaction_sentence(effect: str, where: str, elsewhere: str, change: Mean, column: str) -> str:
    """Does an effect hold elsewhere (a larger batch, a larger model)?"""
    share = label(column).percent
    unit = "percentage points" if share else (label(column).unit or "units")
    if change.bounds is None:
        return f"Whether the effect of {effect} is the same at {elsewhere} cannot be said: too few seeds."
    amount = f"{_signed(change, share)} {unit}"
    if change.sign == 0:
        return f"The effect of {effect} at {elsewhere} is not certainly different from that at {where} ({amount})."
    return f"The effect of {effect} changes between {where} and {elsewhere}: by {amount}."


def curves_sentence(ends: Mapping[Any, float], names: Mapping[Any, str], metric: str, share: bool) -> str:
    """Best and worst at the end of training."""
    ranked = sorted(ends, key=lambda key: ends[key])
    show = percent if share else number
    if len(ranked) == 1:
        return f"At the end of training, {metric} is {show(ends[ranked[0]])}."
    low, high = ranked[0], ranked[-1]
    return (
        f"At the end of training, {metric} lies between {show(ends[low])} ({names[low]}) and {show(ends[high])} "
        f"({names[high]})."
    )


def gap_sentence(gaps: Mapping[str, tuple[float, float]]) -> str:
    """The widest gap between puzzles trained on and unseen ones. gaps: name -> (train, test) accuracy."""
    known = {name: train - test for name, (train, test) in gaps.items() if train == train and test == test}
    if not known:
        return ""
    widest = max(known, key=known.__getitem__)
    if known[widest] <= 0:
        return "No grid point solves more of its training puzzles than of unseen ones."
    where = f", for {widest}," if len(known) > 1 else ""
    size = points(known[widest])[1:]
    return f"The widest gap between training and unseen puzzles{where} is {size} percentage points."


def heatmap_sentence(best: Mapping[str, Any], worst: Mapping[str, Any], x: str, y: str, z: str) -> str:
    """Where the best and worst cells lie. Cells: {x, y, mean (value), bounds, n}."""
    show = percent if label(z).percent else number

    def cell(item: Mapping[str, Any]) -> str:
        bounds = item["bounds"]
        shown = show(item["value"])
        if bounds is not None:
            if label(z).percent:  # a share lies between 0 and 1 whatever Student's interval says
                shown += percents((max(0.0, bounds[0]), min(1.0, bounds[1])))
            else:
                shown += interval(bounds, 3)
        return f"{shown} at {label(x).name} {value_name(item['x'], x)}, {label(y).name} {value_name(item['y'], y)}"

    return f"{label(z).name.capitalize()} is highest, {cell(best)}, and lowest, {cell(worst)}."


def pareto_sentence(kept: Sequence[tuple[str, float, float]], total: int, cost: str, y: str) -> str:
    """The frontier in words. kept: (name, cost, value) by rising cost."""
    show = percent if label(y).percent else number
    unit = label(cost).unit or label(cost).name

    def paid(price: float) -> str:
        if cost == "mean_steps":
            return f"{number(price)} step" + ("" if price == 1 else "s")
        return memory(price) if label(cost).binary else f"{number(price)} {unit}"

    parts = [f"{name} ({show(value)} at {paid(price)})" for name, price, value in kept]
    if len(parts) > 4:
        parts = [*parts[:2], "…", parts[-1]]
    verb = "lies" if len(kept) == 1 else "lie"
    return f"Of {count(total, 'point')}, {len(kept)} {verb} on the frontier of {label(cost).name}: {', '.join(parts)}."
