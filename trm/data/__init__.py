"""Puzzle pools, splits without leaks, data set files, and the sampler."""
