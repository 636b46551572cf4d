"""Checks before a run: the machine (preflight), the TPU program (tpu_check)."""
