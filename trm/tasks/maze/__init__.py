"""Mazes: generation, the official CSV layout."""
