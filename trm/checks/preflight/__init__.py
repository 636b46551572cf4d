"""Checks of a machine, or of all hosts of a job, before a run is trusted to it: a row each, green or red."""
