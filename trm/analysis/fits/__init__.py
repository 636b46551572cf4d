"""Scaling laws: forms, a vectorised robust solver, hierarchical bootstrap, model comparison, fit.json."""

from trm.analysis.fits.run import fit_table

__all__ = ["fit_table"]
