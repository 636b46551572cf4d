"""Sudoku: rules, symmetries, generation, the official CSV layout."""
