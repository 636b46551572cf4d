"""Checks of a machine, or of all hosts of a job, before training on it."""
