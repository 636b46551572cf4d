"""A finding as data, and the one place that puts it into words.

Every comparison ends in one of four cases: a difference is established, it is not, it was before the correction for
several comparisons, or one pair of seeds gives no interval. Figures, captions, the report and the notebook all say it
by `Claim.text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trm.analysis.words import changed

if TYPE_CHECKING:
    from trm.analysis.stats import Mean

Key = TypeVar("Key")
ALPHA = 0.05
"""Level of every test, after Holm's correction over the comparisons of a figure."""
Verdict = Literal["higher", "lower", "open", "corrected", "single", "none"]
"""higher, lower: established. open: not established. corrected: an interval without 0, but not after the correction.
single: one pair of seeds. none: no pair."""


@dataclass(frozen=True)
class Claim:
    """One comparison: `subject` less `against` in `metric`."""

    metric: str
    subject: str
    against: str
    value: float
    interval: tuple[float, float] | None
    verdict: Verdict
    pairs: int = 0
    p: float | None = None
    """Adjusted for the number of comparisons (Holm)."""

    @property
    def sign(self) -> int:
        """+1 or -1 if a difference is established; else 0."""
        return {"higher": 1, "lower": -1}.get(self.verdict, 0)

    @property
    def strength(self) -> float:
        """Size over half the width of the interval; 0 unless established."""
        if not self.sign or self.interval is None:
            return 0.0
        return abs(self.value) / max(1e-9, abs(self.value - self.interval[0]))

    @property
    def numbers(self) -> dict[str, Any]:
        """For the figure's JSON."""
        return asdict(self)

    def text(self) -> str:
        """`5.0 [2.0, 8.0] points higher than with B`, or why nothing is established."""
        amount = f"{changed(self.metric, self.value, self.interval)} against {self.against}"
        if self.interval is None:
            return f"{amount} (one pair of seeds: no interval)"
        low, high = self.interval
        if self.sign:
            bounds = (low, high) if self.sign > 0 else (-high, -low)
            size = changed(self.metric, abs(self.value), bounds, sign=False)
            return f"{size} {self.verdict} than with {self.against}"
        if self.verdict == "corrected":
            return f"{amount}, not established after correction for several comparisons"
        most = changed(self.metric, max(-low, high), sign=False)
        return f"{amount}, no difference established (at most {most})"


def claim(metric: str, subject: str, against: str, mean: Mean, p: float | None) -> Claim:
    """The claim of a paired difference with its adjusted p value."""
    verdict: Verdict = "open"
    if not mean.n:
        verdict = "none"
    elif mean.bounds is None:
        verdict = "single"
    elif p is not None and p < ALPHA:
        verdict = "higher" if mean.value > 0 else "lower"
    elif mean.sign:
        verdict = "corrected"
    return Claim(metric, subject, against, mean.value, mean.bounds, verdict, mean.n, p)


def claims(
    metric: str, against: str, found: Mapping[Key, Mean], name: Callable[[Key], str] = str
) -> dict[Key, Claim]:
    """Claims on several differences from `against`, with p values adjusted together; `name` gives their subjects."""
    from trm.analysis.stats import holm

    adjusted = holm([mean.p for mean in found.values()])
    return {
        key: claim(metric, name(key), against, mean, p) for (key, mean), p in zip(found.items(), adjusted)
    }


def strongest(found: Iterable[Claim]) -> float | None:
    """Strength of the best established claim; None: none is."""
    return max((item.strength for item in found if item.sign), default=None)
