"""Ticks of axes: round numbers, per cent, SI prefixes and binary units."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trm.analysis.labels import Label
from trm.analysis.words import compact, memory


def shown(text: Label, value: float) -> str:
    """A tick label in the unit of the column."""
    if text.percent:
        return f"{100 * value:.4g}"
    if text.binary:
        return memory(value)
    exact = 1e3 <= value < 1e4 and value == round(value) and value % 10 and value != float(f"{value:.3g}")
    return f"{value:,.0f}" if exact else compact(value)


class BinaryLocator(MaxNLocator):
    """Round numbers of KiB, MiB or GiB."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        unit = 1024.0 ** max(0, min(3, int(np.log2(max(abs(vmax), 1)) // 10)))
        return [tick * unit for tick in super().tick_values(vmin / unit, vmax / unit)]


def panel_width(axes: Axes) -> float:
    """About how many inches wide the area between the axes of a panel is."""
    figure, grid = axes.get_figure(root=True), axes.get_gridspec()
    assert figure is not None
    assert grid is not None
    return 0.8 * figure.get_figwidth() / grid.ncols


def round_values(values: np.ndarray) -> bool:
    """Whether ticks at the measured values read well: whole numbers below 1,000, powers of two, two digits."""
    whole = values == np.round(values)
    short = np.isclose(values, [float(f"{value:.2g}") for value in values], rtol=1e-6)
    return bool(((whole & ((values < 1e3) | (np.log2(values) % 1 == 0))) | short).all())


def fitting(axes: Axes, values: np.ndarray, span: float, words: Any) -> list[float]:
    """Values of a log axis over `span` (in log units) whose tick labels do not touch: the last, and what fits left of
    it."""
    kept: list[float] = []
    for value in values[::-1]:
        room = np.log(kept[-1] / value) / span * 72 * panel_width(axes) if kept else np.inf
        if room >= 2.4 * (len(words(value)) + len(words(kept[-1] if kept else value))) + 5:
            kept.append(float(value))
    return kept[::-1]


def nice(low: float, high: float) -> list[float]:
    """Ticks of a log axis within [low, high]: 1-2-5, finer below one decade, powers of ten over wide ranges."""
    decades = np.arange(np.floor(np.log10(low)) - 1, np.ceil(np.log10(high)) + 1)
    span = np.log10(high / low)
    fine, middle, coarse = (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3)
    steps = fine if span < 0.8 else middle if span < 2.6 else coarse if span < 3.2 else (1,)
    if span > 8:
        decades = decades[:: int(np.ceil(span / 7))]
    ticks = [float(step * 10.0**decade) for decade in decades for step in steps]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
