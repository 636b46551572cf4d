"""Numbers in words: rounding, units, intervals. Axes, sentences and tables all write numbers this way."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from trm.analysis.labels import label
from trm.study.text import count as count

SYMBOLS = ("T", "n", "d", "Nsup", "λ")
"""Letters at the end of a column's name."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits; thousands separated; powers of ten beyond 10^6 and below 10^-3."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if value < 0:
        return "−" + number(-value, digits)
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        power = math.floor(math.log10(size))
        mantissa = round(value / 10**power, digits - 1)
        if abs(mantissa) >= 10:
            mantissa, power = mantissa / 10, power + 1
        head = f"{mantissa:.{max(0, digits - 1)}f}".rstrip("0").rstrip(".")
        tail = "10" + str(power).translate(_SUPERSCRIPT)
        return tail if head == "1" else f"{head} × {tail}"
    places = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{round(value, places):,.{places}f}" if size < 1000 else f"{round(value):,}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float | None, bounds: Sequence[float | None] | None = None) -> str:
    """A share of one in per cent with its interval: `87.4 % [85.1, 89.7]`.

    One decimal; two significant digits below 1 %. The bounds have the decimals of the value, from 10 % on one.
    """
    if share is None or not math.isfinite(share):
        return "–"
    value = 100 * share
    places = 1 if abs(value) >= 0.95 or abs(value) < 5e-4 else 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{places}f} %" + _bracket(bounds, 100, places)


def goal(share: float) -> str:
    """A target accuracy: `85 %`."""
    return f"{100 * share:.3g} %"


def points(
    difference: float | None, bounds: Sequence[float | None] | None = None, *, sign: bool = True
) -> str:
    """A difference of shares in percentage points with its interval: `+3.1 [1.0, 5.2] points`."""
    if difference is None or not math.isfinite(difference):
        return "–"
    text = f"{100 * difference:{'+' if sign else ''}.1f}"
    return _true_minus(text) + _bracket(bounds, 100, 1) + " points"


def estimate(value: float, bounds: Sequence[float | None] | None = None) -> str:
    """Two significant digits; the interval has the decimals of the value: `1.7 [1.5, 2.0]`, `82 [58, 111]`."""
    known = [abs(bound) for bound in bounds or () if bound is not None and math.isfinite(bound)]
    if not known or not 1e-3 <= abs(value) < 1e6 or max(known) >= 1e7:
        return number(value, 2) + _ends(bounds, lambda end: number(end, 2))
    places = max(0, 1 - math.floor(math.log10(abs(value))))
    return _true_minus(f"{value:,.{places}f}") + _bracket(bounds, 1, places)


def _bracket(bounds: Sequence[float | None] | None, scale: float, places: int) -> str:
    """`_ends` with fixed decimals; a bound of 10 and more has at most one."""

    def written(end: float) -> str:
        return _true_minus(f"{scale * end:,.{min(places, 1) if abs(scale * end) >= 10 else places}f}")

    return _ends(bounds, written)


def _ends(bounds: Sequence[float | None] | None, written: Callable[[float], str]) -> str:
    """` [low, high]`; ` (at least low)` or ` (at most high)` where the other end is open; nothing without an interval,
    or if it has no width as written."""
    low, high = (
        None if bound is None or not math.isfinite(bound) else written(float(bound))
        for bound in bounds or (None, None)
    )
    if low is None or high is None:
        return f" (at least {low})" if low else f" (at most {high})" if high else ""
    return f" [{low}, {high}]" if low != high else ""


def _true_minus(text: str) -> str:
    """With a minus sign instead of a hyphen, and no sign before a zero."""
    return text.lstrip("+-") if not text.strip("+-0.") else text.replace("-", "−")


def measured(column: str, value: float | None, bounds: Sequence[float | None] | None = None) -> str:
    """A value of a column with its unit and interval, as every text, figure and table writes it."""
    text = label(column)
    if text.percent:
        return percent(value, bounds)
    if text.binary:
        return memory(value)
    return f"{estimate(value, bounds)} {text.unit}".rstrip() if value is not None else "–"


def changed(
    column: str, value: float, bounds: Sequence[float | None] | None = None, *, sign: bool = True
) -> str:
    """A difference of two values of a column with its unit and interval."""
    text = label(column)
    if text.percent:
        return points(value, bounds, sign=sign)
    if text.binary:
        return ("+" if sign and value > 0 else "") + memory(value)
    return f"{'+' if sign and value > 0 else ''}{estimate(value, bounds)} {text.unit}".rstrip()


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def noun(column: str) -> str:
    """A column's name in running text, without what is in brackets and without `on unseen puzzles`."""
    return label(column).name.split(" (")[0].split(" on unseen")[0]


def signed(value: float) -> str:
    """A difference on an axis: +2, −0.5, 0; with a true minus sign."""
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def compact(value: float) -> str:
    """A tick label with SI prefixes: 100, 1k, 2.5M, 4G (10^9), 1T (10^12), 3P, 2E, 1Z."""
    size = abs(value)
    for power, prefix in ((21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if size >= 10**power * (1 - 5e-4):  # three digits of 999.6G are 1T
            return f"{value / 10**power:.3g}{prefix}"
    return f"{value:.3g}"


def memory(size: float | None) -> str:
    """Bytes in binary units."""
    if size is None or not math.isfinite(size):
        return "–"
    if size < 0:
        return "−" + memory(-size)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{number(size)} {unit}"
        size /= 1024
    return f"{number(size)} GiB"


def value_name(value: Any, column: str = "") -> str:
    """A value of a configuration key as people write it; with its column, counted as the column's label says: 50 copies
    are 51 versions."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or value == "":
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        value += label(column).offset if column else 0
        if float(value).is_integer() and abs(value) < 1e6:
            return f"{int(value):,}"
        if abs(value) >= 0.9 and abs(value) < 1:
            return f"{value:.6g}"
        return number(float(value)) if abs(value) >= 1e6 else f"{value:.4g}"
    text = str(value)
    names = {
        "mlp": "MLP",
        "adam_atan2": "Adam-atan2",
        "adamw": "AdamW",
        "lion": "Lion",
        "muon": "Muon",
        "ema": "EMA",
    }
    return names.get(text, text.replace("_", " "))


_SHORT = {
    "d_model": "d",
    "h_cycles": "T",
    "l_cycles": "n",
    "halt_max_steps": "Nsup",
    "train_puzzles": "puzzles",
    "augmentations": "copies",
    "batch_size": "batch",
    "micro_batches": "micro-batches",
    "halting_cost": "λ",
    "flops": "FLOPs",
}


def point_name(name: Any) -> str:
    """A grid point's name as people write it: `T=1, n=2` for `h_cycles=1, l_cycles=2`; its own words stay."""
    text = re.sub(
        r"\b([a-z]\w*)=", lambda found: _SHORT.get(found[1], found[1].replace("_", " ")) + "=", str(name)
    )
    return re.sub(r"(?<==)\d[\d.]*e[+-]?\d+", lambda found: compact(float(found[0])), text)


def setting_in_words(column: str, value: Any) -> str:
    """One value of a column in a sentence: `batch size 256`, `outer cycles T = 2`, `2 layers`, `the recipe`."""
    if column == "series":
        text = str(value) if isinstance(value, str) and value else ""
        return text.replace("_", " ").replace("=", " ") or "the recipe"
    if column == "label":
        return f"“{point_name(value)}”"
    name, shown, one = noun(column), value_name(value, column), label(column).one
    if one and shown[0].isdigit():
        return f"{shown} {one if shown == '1' else name}"
    return f"{name} {'= ' if name.rsplit(' ', 1)[-1] in SYMBOLS else ''}{shown}"


def several_axes(taken: Sequence[str], names: Sequence[str]) -> str:
    """Why no law of the first of `taken` holds for runs of equal ones that differ in these columns, too."""
    remedy = "set `hue` to one of them, and a value of every other by `where`"
    remedy = "give a value by `where`" if taken[1:] else remedy
    verb = "differ" if names[1:] else "differs"
    return f"{listed(names)} {verb} at equal {listed(taken)}, and one law would average these runs: {remedy}"


def duration(hours: float | None) -> str:
    """A length of time with two significant digits, in the unit that reads best."""
    if hours is None or not math.isfinite(hours):
        return "–"
    for size, unit in ((24.0, "d"), (1.0, "h"), (1 / 60, "min")):
        if hours >= (2 * size if unit == "d" else size * 0.995):
            return f"{number(hours / size, 2)} {unit}"
    return f"{number(hours * 3600, 2)} s"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""
