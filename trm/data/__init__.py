"""Puzzle pools, leak-free splits, data set files, and the sampler."""
