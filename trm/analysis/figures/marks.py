"""Marks that the laws of two variables share: seeds faint, and beside them each point's mean with its interval."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes


def seeds_and_means(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    points: np.ndarray,
    means: Mapping[str, tuple[float, float, float]],
    left_out: np.ndarray,
    here: np.ndarray,
    colour: str,
    marker: str,
    shift: float,
) -> list[tuple[float, float]]:
    """Draw the runs of one colour, and the mean of each of their grid points.

    Args:
        x, y: places and values of all runs; points: the grid point of each, a key of `means`.
        means: centre, low and high of each grid point.
        left_out: runs that the fit leaves out; a point of which all are stands hollow.
        here: the runs of this colour.
        shift: factor by which the seeds stand beside their mean.

    Returns:
        Place and centre of each point drawn.
    """
    axes.plot(x[here] * shift, y[here], marker, color=colour, alpha=0.4, markersize=2.6, mew=0)
    drawn = []
    for point in np.unique(points[here]):
        centre, low, high = means[point]
        same = points == point
        place = float(x[same][0])
        if np.isfinite(low):
            axes.plot([place, place], [low, high], color=colour, linewidth=1)
        axes.plot(
            place, centre, marker, color=colour, markerfacecolor="white" if left_out[same].all() else colour
        )
        drawn.append((place, centre))
    return drawn
