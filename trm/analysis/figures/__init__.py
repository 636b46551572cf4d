"""Every figure kind: `draw(spec, tables, fits)` -> a Drawing; base.py holds what they share, registry.py
finds them."""

from trm.analysis.figures.base import Drawing, save, styled
from trm.analysis.figures.registry import draw

__all__ = ["Drawing", "draw", "save", "styled"]
