"""Numbers in sentences: counts, durations, FLOPs, bytes."""

from collections.abc import Iterable


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 run`, `2 runs`, `1,000 runs`; `plural` if it is irregular."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def seconds_text(seconds: float) -> str:
    """A duration to two digits: 42 s, 3.5 min, 2.1 h, 4.2 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds)} s"


def device_text(hours: float) -> str:
    """Device-hours to two digits, never in days: 4.4 min, 3.1 h, 12,000 h."""
    return seconds_text(hours * 3600) if hours < 2 else f"{_two_digits(hours)} h"


def _two_digits(value: float) -> str:
    if value < 10:
        return f"{value:.1f}".removesuffix(".0")
    digits = max(0, len(str(int(value))) - 2)
    return f"{round(value, -digits):,.0f}"


def flops_text(flops: float) -> str:
    """FLOPs with a prefix: 3.2 TFLOP."""
    return _with_prefix(flops, "FLOP", ("Z", "E", "P", "T", "G", "M"), 1e21)


def bytes_text(count: float) -> str:
    """Bytes with a prefix: 1.2 GB."""
    return _with_prefix(count, "B", ("T", "G", "M", "k"), 1e12)


def _with_prefix(value: float, unit: str, prefixes: Iterable[str], size: float) -> str:
    """The value in the largest unit that it reaches, of those 1,000 apart from `size` down."""
    for prefix in prefixes:
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
        size /= 1e3
    return f"{value:.0f} {unit}"
