"""Findings: what figures and fits find, as one table, and the only place where a finding becomes a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from trm.analysis.labels import label
from trm.analysis.words import changed, estimate, measured, noun, sentence

if TYPE_CHECKING:
    import pandas as pd

    from trm.analysis.stats import Mean

Key = TypeVar("Key")
Bounds = tuple[float, float] | None
ALPHA = 0.05
"""Level of every test, after Holm's correction over the comparisons of a figure."""
FALL = 1.5
"""Upper bound on the strength of a change that follows no law, so that it never outranks a law."""
TOLD = 3
"""Most findings that a figure tells in sentences; its table holds all."""
Kind = Literal["difference", "interaction", "level", "power", "change", "optimum", "prediction", "price"]
"""difference: `subject` less `against`. interaction: how much that differs at `place`. level: a value alone. power: the
exponent of a law of `subject`. change: a metric over the range `against` of `subject`, without a form; the logarithm of
the ratio of its `ends`, or where nothing changes (no `why`) its level. optimum: the exponent of the best value of
`metric` in `subject`; over the range `against` alone if it is no power law. prediction: what `subject` predicts, and
the measured value is the first of `ends`. price: the value of `metric` that `subject` needs."""
Verdict = Literal["supported", "contradicted", "undecided", "measured"]
"""supported: the interval leaves out 0 (of a prediction: holds the measured value). contradicted: a prediction whose
interval does not. undecided: the interval holds 0, or there is none. measured: a value alone."""


@dataclass(frozen=True)
class Finding:
    """One row of the table: `subject` against `against` in `metric`."""

    kind: Kind
    metric: str
    subject: str
    against: str = ""
    value: float = math.nan
    interval: Bounds = None
    verdict: Verdict = "undecided"
    place: str = ""
    """Where it holds: `batch size 512`, `the best width d`; empty: there is one place."""
    why: str = ""
    """Why it is undecided; of a level, an addition (` of 8`)."""
    ruler: str = ""
    """Supervision steps at test time that it is read at, and what the exponent is at others."""
    ends: tuple[float, float] | None = None
    """The metric at `against` and at `subject`, or at both ends of the range."""
    pairs: int = 0
    p: float | None = None
    """Adjusted for the number of comparisons (Holm)."""
    counts: bool = True
    """Whether it may be the figure's answer; false for a gain that no user could realise."""

    @property
    def sign(self) -> int:
        """+1 or -1 if an effect is established; else 0."""
        return 0 if self.verdict != "supported" or self.kind == "prediction" else 1 if self.value > 0 else -1

    @property
    def strength(self) -> float:
        """Size over half the width of the interval; 0 unless an effect is established."""
        if not self.sign or self.interval is None or self.kind == "interaction":
            return 0.0
        half = (self.interval[1] - self.interval[0]) / 2
        return min(abs(self.value) / max(1e-9, half), FALL if self.kind == "change" else math.inf)

    @property
    def excluded(self) -> float | None:
        """Of an undecided finding, the smallest effect that the interval excludes; None: it excludes none."""
        if self.verdict != "undecided" or self.interval is None or self._constant:
            return None
        most = max(abs(end) for end in self.interval)
        return most if most < largest(self.metric, self.kind) else None

    @property
    def amount(self) -> str:
        """The value with its interval and unit."""
        if self.kind in ("power", "optimum"):
            return estimate(self.value, self.interval)
        if self.kind in ("difference", "interaction"):
            return changed(self.metric, self.value, self.interval)
        if self.kind == "change" and self.ends and not self._constant:
            bounds = self.interval and [math.exp(end) for end in self.interval]
            return f"factor {estimate(math.exp(self.value), bounds)}"
        return measured(self.metric, self.value, self.interval)

    @property
    def _constant(self) -> bool:
        """Whether it is the level of a metric that does not change."""
        return self.kind == "change" and not self.why

    @property
    def text(self) -> str:
        """One sentence, by the template of its kind."""
        clause = getattr(self, f"_{self.kind}")()
        named = self.place.startswith("“") or " attempts" in self.place
        where = f"{'with' if named else 'at'} {self.place}, " if self.place else ""
        return sentence((where if self.kind != "interaction" else "") + clause) + "."

    @property
    def record(self) -> dict[str, Any]:
        """Its row."""
        low, high = self.interval or (None, None)
        names = ("kind", "metric", "subject", "against", "place", "ruler", "verdict", "pairs", "p", "why")
        row = {name: getattr(self, name) for name in names}
        ends = dict(zip(("first", "last"), self.ends or (None, None)))
        numbers = {"value": self.value, "low": low, "high": high, "excluded": self.excluded, **ends}
        numbers = {
            key: number if number is None or math.isfinite(number) else None
            for key, number in numbers.items()
        }
        return {**row, **numbers, "amount": self.amount, "text": self.text}

    def _difference(self) -> str:
        name = noun(self.metric)
        if not self.pairs:
            return f"no pair of equal seeds has {name} with both {self.subject} and {self.against}"
        if self.sign:
            low, high = self.interval or (self.value, self.value)
            bounds = (low, high) if self.value > 0 else (-high, -low)
            size, way = (
                changed(self.metric, abs(self.value), bounds, sign=False),
                "higher" if self.sign > 0 else "lower",
            )
            return (
                f"{name} is {size} {way} with {self.subject} than with {_short(self.against, self.subject)}"
            )
        if self.interval is None:
            alone = "one pair of seeds gives" if self.pairs < 2 else f"{self.pairs} equal differences give"
            text = f"{name} differs by {self.amount} between {self.against} and {self.subject}"
            return f"{text}; {alone} no interval"
        if self.excluded is None:
            return self._unbounded()
        most = changed(self.metric, self.excluded, sign=False)
        return f"{name} with {self.subject} is within {most} of that with {self.against}; no difference is established"

    def _unbounded(self) -> str:
        """A difference of shares whose interval reaches the largest possible one."""
        low, high = self.interval or (self.value, self.value)
        name, way, most = noun(self.metric), "higher", high
        if high >= largest(self.metric, self.kind):
            way, most = "lower", -low
        if not 0 < most < largest(self.metric, self.kind):
            sides = f"between {self.against} and {self.subject}"
            return f"no difference of {name} {sides} is excluded; {self.pairs} pairs of seeds are too few"
        size = changed(self.metric, most, sign=False)
        than = _short(self.against, self.subject)
        return f"{name} is at most {size} {way} with {self.subject} than with {than}; no difference is established"

    def _interaction(self) -> str:
        effect = f"the effect of {self.subject} on {noun(self.metric)}"
        if self.interval is None:
            return f"too few seeds compare {effect} at {self.place} and at {self.against}"
        if self.sign:
            return f"{effect} differs by {self.amount} between {self.against} and {self.place}"
        if self.excluded is None:
            return f"no difference of {effect} between {self.against} and {self.place} is excluded"
        most = changed(self.metric, self.excluded, sign=False)
        return f"{effect} at {self.place} is within {most} of that at {self.against}"

    def _level(self) -> str:
        if math.isnan(self.value):
            return f"no {noun(self.metric)} is established; {self.why}"
        of = f" with {self.subject}" if self.subject else ""
        name = noun(self.metric) if self.subject else f"the {noun(self.metric)}"
        return f"{name}{of} {'are' if _plural(noun(self.metric)) else 'is'} {self.amount}{self.why}"

    def _power(self) -> str:
        if self.verdict != "supported":
            return f"whether {noun(self.metric)} is a power of {self.subject} is undecided; {self.why or self.amount}"
        verb = "falls" if self.value < 0 else "rises"
        return f"{noun(self.metric)} {verb} as {self.subject} to the power {self.amount}{self._where}"

    def _change(self) -> str:
        name = noun(self.metric)
        if self.ends is None:
            return f"no law of {name} against {self.subject} is fitted; {self.why}"
        if self._constant:
            level = measured(self.metric, self.value, self.interval)
            return f"no trend of {name} is established {self.against}; the mean is {level}"
        verb = "falls" if self.ends[1] < self.ends[0] else "rises"
        first, last = (measured(self.metric, end) for end in self.ends)
        return f"{name} {verb} from {first} to {last} {self.against}; no power law is established"

    def _optimum(self) -> str:
        best, verb = f"the best {noun(self.metric)}", "falls" if self.value < 0 else "grows"
        verb = verb[:-1] if _plural(noun(self.metric)) else verb
        if self.verdict != "supported":
            return f"whether {best} grows with {self.subject} is undecided; {self.why or self.amount}"
        if self.against:
            return f"{best} {verb} with {self.subject} by a local exponent of {self.amount}{self._where}{self._read}"
        return f"{best} {verb} as {self.subject} to the power {self.amount}{self._read}"

    def _prediction(self) -> str:
        found = measured(self.metric, (self.ends or (self.value,))[0])
        where = {"supported": ", inside", "contradicted": ", outside"}.get(self.verdict, "")
        what = "" if label(self.metric).unit or label(self.metric).percent else f"{noun(self.metric)} "
        return f"{self.subject} predict {what}{self.amount}; {found} was measured{where}"

    def _price(self) -> str:
        if math.isnan(self.value):
            return f"{self.subject} is never reached by this law"
        return f"{self.subject} needs {self.amount}" + f"; {self.why}" * bool(self.why)

    @property
    def _read(self) -> str:
        return f", measured after {self.ruler.partition(';')[0]}" if self.ruler else ""

    @property
    def _where(self) -> str:
        return f" {self.against}" if self.against else ""


def _short(against: str, subject: str) -> str:
    """`1` for `1 supervision step` beside `32 supervision steps`."""
    (one, _, what), (many, _, whats) = (text.partition(" ") for text in (against, subject))
    alike = re.sub(r"s\b", "", what) == re.sub(r"s\b", "", whats)
    return one if alike and what and (one + many).replace(",", "").isdigit() else against


def _plural(name: str) -> bool:
    """Whether a name, without what follows `of` or `between`, is in the plural."""
    words = name.split(" of ")[0].split(" between ")[0].split()
    return any(word.endswith("s") and not word.endswith(("ss", "us")) for word in words)


# making findings -----------------------------------------------------------------------------------------------------


def side(interval: Bounds) -> Verdict:
    """Whether an interval leaves out 0."""
    return "supported" if interval and (interval[0] > 0 or interval[1] < 0) else "undecided"


def largest(metric: str, kind: Kind) -> float:
    """The largest possible difference, or difference of differences, of a metric."""
    return (2.0 if kind == "interaction" else 1.0) if label(metric).percent else math.inf


class Contrast(NamedTuple):
    """One comparison of a figure, before the correction for all of them."""

    mean: Mean
    subject: str
    against: str
    place: str = ""
    ends: tuple[float, float] | None = None
    kind: Kind = "difference"


def contrast(left: pd.Series, right: pd.Series, subject: str, against: str, place: str = "") -> Contrast:
    """The difference of two series (against, subject; index: seed) in pairs of seeds."""
    from trm.analysis import stats

    before, after = stats.shared(left, right)
    ends = (float(before.mean()), float(after.mean())) if len(before) else (math.nan, math.nan)
    return Contrast(stats.mean(after - before), subject, against, place, ends)


def compared(metric: str, contrasts: Mapping[Key, Contrast]) -> dict[Key, Finding]:
    """Findings on all comparisons of a figure, whose p values are adjusted together by Holm's method: also those that
    are not shown, where the results choose."""
    from trm.analysis.stats import holm

    found = {}
    adjusted = holm([item.mean.p for item in contrasts.values()])
    for (key, (mean, subject, against, place, ends, kind)), p in zip(contrasts.items(), adjusted):
        sure = p is not None and p < ALPHA
        verdict: Verdict = "supported" if sure else "undecided"
        why = "not after correction for several comparisons" if mean.sign and not sure else ""
        more: dict[str, Any] = {"place": place, "why": why, "ends": ends, "pairs": mean.n, "p": p}
        possible = mean.clipped(-largest(metric, kind), largest(metric, kind)).bounds
        found[key] = Finding(kind, metric, subject, against, mean.value, possible, verdict, **more)
    return found


def level(metric: str, subject: str, mean: Mean, why: str = "", **fields: Any) -> Finding:
    """A value alone."""
    return Finding("level", metric, subject, "", mean.value, mean.bounds, "measured", why=why, **fields)


def prediction(
    metric: str, subject: str, observed: float, predicted: float, bounds: Bounds, place: str = ""
) -> Finding:
    """What was measured, held against what `subject` predicts."""
    verdict: Verdict = "undecided"
    if bounds:
        verdict = "supported" if bounds[0] <= observed <= bounds[1] else "contradicted"
    ends = (observed, predicted)
    return Finding("prediction", metric, subject, "", predicted, bounds, verdict, place, ends=ends)


# a figure's answer ---------------------------------------------------------------------------------------------------


def main(found: Sequence[Finding]) -> Finding | None:
    """The finding that answers a figure's question: the first, or of differences the largest established one, else the
    one that could be largest. None: there is none."""
    known = [item for item in found if item.counts and item.kind != "interaction"]
    if not known or known[0].kind != "difference":
        return known[0] if known else None
    known = [item for item in known if item.kind == "difference"]
    sure = [item for item in known if item.sign]
    return max(
        sure or known, key=lambda item: abs(item.value) if sure else max(map(abs, item.interval or (0.0,)))
    )


def told(found: Sequence[Finding]) -> str:
    """The answer and the next findings, in sentences."""
    first = main(found)
    rest = sorted((item for item in found if item is not first), key=lambda item: not item.sign)
    return " ".join(dict.fromkeys(item.text for item in [*filter(None, [first]), *rest][:TOLD]))


def strength(found: Iterable[Finding]) -> float | None:
    """Strength of the best established finding; None: none is."""
    return max((item.strength for item in found if item.counts and item.sign), default=None)
