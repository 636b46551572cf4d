"""Scaling study of the Tiny Recursive Model (arXiv 2510.04871): data, model, training, evaluation, analysis."""

__version__ = "1.0.0"
