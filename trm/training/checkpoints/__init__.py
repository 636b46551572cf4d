"""Checkpoints: format, folder, remote copy, lock."""
