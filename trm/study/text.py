"""Counts in sentences."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 run`, `2 runs`, `1,000 runs`; `plural` if it is irregular."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
