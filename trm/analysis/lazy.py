"""Heavy modules, imported on first use, and types of theirs that annotations name.

The Snakefile validates figure specifications, so it imports every module of `trm.analysis.kinds`. numpy, pandas, scipy
and matplotlib would add a second to each dry run; only drawing needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib as mpl
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from trm.analysis import stats
    from trm.analysis.kinds import common
    from trm.analysis.tables import Table
else:

    class Lazy:
        """A module that is imported at the first attribute access."""

        def __init__(self, name: str):
            self.__name = name

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(import_module(self.__name), attribute)
            setattr(self, attribute, value)
            return value

    mpl, np, pd = Lazy("matplotlib"), Lazy("numpy"), Lazy("pandas")
    stats, common = Lazy("trm.analysis.stats"), Lazy("trm.analysis.kinds.common")
    Axes = Canvas = Table = Any

__all__ = ["Axes", "Canvas", "Table", "common", "mpl", "np", "pd", "stats"]
