"""Findings as data, and the only place where they become text.

Figures, fits and checks of hypotheses all produce `Claim`s; sentences, answers, verdicts, the abstract and the
notebook are written from them by `sentences` (all of them), `answer` (the one that counts) and `Claim.text` (one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trm.analysis.words import changed, count, estimate, listed, measured, noun, number, sentence

if TYPE_CHECKING:
    import pandas as pd

    from trm.analysis.stats import Mean

Key = TypeVar("Key")
Bounds = tuple[float, float] | None
ALPHA = 0.05
"""Level of every test, after Holm's correction over the comparisons of a figure."""
NAMED = 4
"""A sentence lists at most this many values one by one."""
FALL = 1.5
"""Upper bound on the strength of a change that follows no law, so that it never outranks a law."""
Measure = Literal["difference", "interaction", "level", "power", "change", "optimum", "prediction"]
"""difference: `subject` less `against`. interaction: how much that differs at `place`. level: a value alone. power: the
exponent of a law of `subject` over the range `against`. change: the same range, without a form; the logarithm of the
ratio of its `ends`. optimum: the exponent of the best value of `metric` in `subject`, over the range
`against` alone if it is no power law. prediction: an extrapolation to `subject`, held against the published
`against`."""
Outcome = Literal["higher", "lower", "open", "corrected", "single", "none"]
"""higher, lower: established. open: not established. corrected: an interval without 0, but not after the correction.
single: one pair of seeds, or several with
one and the same difference: no interval. none: nothing to compare, or not possible."""


@dataclass(frozen=True)
class Claim:
    """One finding: `subject` against `against` in `metric`."""

    metric: str
    subject: str
    against: str
    value: float
    interval: Bounds
    verdict: Outcome
    measure: Measure = "difference"
    ends: tuple[float, float] | None = None
    """The metric at `against` and at `subject`, or at both ends of the range."""
    place: str = ""
    """Where it holds: `batch size 512`, `the recipe`; empty: there is one place."""
    more: str = ""
    """Addition to the sentence: the floor of a law, why none is claimed, the price of a gain."""
    notes: str = ""
    """Further sentences, omitted from answers."""
    counts: bool = True
    """Whether it may be the figure's answer; false for a gain that no user could realise."""
    pairs: int = 0
    p: float | None = None
    """Adjusted for the number of comparisons (Holm)."""

    @property
    def sign(self) -> int:
        """+1 or -1 if an effect is established; else 0."""
        return {"higher": 1, "lower": -1}.get(self.verdict, 0)

    @property
    def strength(self) -> float:
        """Size over half the width of the interval; 0 unless established."""
        if not self.sign or self.interval is None or self.measure in ("level", "interaction", "prediction"):
            return 0.0
        half = (self.interval[1] - self.interval[0]) / 2
        return min(abs(self.value) / max(1e-9, half), FALL if self.measure == "change" else float("inf"))

    @property
    def numbers(self) -> dict[str, Any]:
        """For the figure's JSON."""
        return asdict(self)

    @property
    def amount(self) -> str:
        """The value with its interval and unit."""
        if self.measure in ("power", "optimum"):
            return estimate(self.value, self.interval)
        if self.measure in ("level", "prediction"):
            return measured(self.metric, self.value, self.interval)
        return changed(self.metric, self.value, self.interval)

    @property
    def size(self) -> str:
        """An established difference without its sign."""
        low, high = self.interval or (self.value, self.value)
        bounds = (low, high) if self.value > 0 else (-high, -low)
        return changed(self.metric, abs(self.value), bounds, sign=False)

    @property
    def alone(self) -> str:
        """Why a difference has no interval."""
        return "one pair of seeds" if self.pairs < 2 else f"{self.pairs} equal differences"

    def text(self) -> str:
        """The claim as a clause: lower case, no full stop."""
        words: Callable[[], str] = getattr(self, f"_{self.measure}")
        return words()

    def _difference(self) -> str:
        name, more = noun(self.metric), f", {self.more}" if self.more else ""
        if self.verdict == "none":
            return f"{name} with {self.subject} and with {self.against} share no seed: not compared"
        if self.sign and self.ends:
            first, last = (measured(self.metric, end) for end in self.ends)
            verb = "rises" if self.sign > 0 else "falls"
            return f"{name} {verb} from {first} with {self.against} to {last} with {self.subject} ({self.amount}){more}"
        if self.sign:
            return f"{name} is {self.size} {self.verdict} with {self.subject} than with {self.against}{more}"
        if self.verdict == "single" and self.ends:
            first, last = (measured(self.metric, end) for end in self.ends)
            why = self.more or f"{self.alone}, no interval"
            return f"{name} is {first} with {self.against} and {last} with {self.subject} ({why})"
        why = {
            "single": f"{self.alone}: no interval",
            "corrected": "not established after correction for several comparisons",
        }.get(self.verdict, "no difference established" + " by two pairs of seeds" * (self.pairs == 2))
        between = f"between {self.against} and {self.subject}"
        return f"{name} differs by {self.amount} {between}: {why}{more}"

    def _interaction(self) -> str:
        effect = f"the effect of {self.subject} at {self.place}"
        if self.interval is None:
            return f"whether {effect} is that at {self.against} is open: too few seeds"
        differs = f"{effect} differs from that at {self.against} by {self.amount}"
        return differs + ("" if self.sign else ": not established")

    def _level(self) -> str:
        name = noun(self.metric)
        if self.value != self.value:
            return f"we claim no {name}: {self.more}"
        of = f"{name} with {self.subject}" if self.subject else f"the {name}"
        return f"{of} {_is(name)} {self.amount}{self.more}"

    def _power(self) -> str:
        verb = "falls" if self.value < 0 else "rises"
        law = f"{noun(self.metric)} {verb} as a power law of {self.subject}"
        return f"{law}{self.against and ' ' + self.against} with exponent {self.amount}{self.more}"

    def _change(self) -> str:
        name, why = noun(self.metric), f"; we claim no power law: {self.more}" if self.more else ""
        if self.ends is None:
            return f"we claim no law of {name} against {self.subject}: {self.more}"
        if self.verdict == "none":
            level = measured(self.metric, self.value, self.interval)
            return f"no trend of {name} is established {self.against}: its mean is {level}{self.more}"
        verb = "falls" if self.value < 0 else "rises"
        first, last = one_unit(*(measured(self.metric, end) for end in self.ends))
        return f"{name} {verb} from {first} to {last} {self.against}{why}"

    def _optimum(self) -> str:
        if self.verdict == "none":
            return f"how the best {noun(self.metric)} depends on {self.subject} is open: {self.more}"
        verb = "falls" if self.value < 0 else "rises"
        if not self.sign:
            best = f"the best {noun(self.metric)}"
            return f"no trend of {best} with {self.subject} is established (exponent {self.amount})"
        if self.against:
            local = f"the best {noun(self.metric)} {verb} with {self.subject} by a local exponent of {self.amount}"
            return f"{local} {self.against}{self.more}"
        law = f"the best {noun(self.metric)} {verb} as a power law of {self.subject} with exponent {self.amount}"
        return law + self.more

    def _prediction(self) -> str:
        inside = {"open": ", inside the interval", "single": ""}.get(self.verdict, ", outside the interval")
        return f"{self.subject} {noun(self.metric)} {self.amount}; {self.against}{inside}{self.more}"


def verdict_on(interval: tuple[float, float], value: float = 0.0) -> Outcome:
    """Whether the whole interval lies above or below a value."""
    return "higher" if interval[0] > value else "lower" if interval[1] < value else "open"


# making claims -------------------------------------------------------------------------------------------------------


def compared(
    metric: str, pairs: Mapping[Key, tuple[pd.Series, pd.Series]], name: Callable[[Key], tuple[str, ...]]
) -> dict[Key, Claim]:
    """Claims on the differences of pairs of series (against, subject; index: seed), tested together. `name`: subject,
    against and, if there are several, the place of each key."""
    from trm.analysis import stats

    means = {key: stats.paired(*pair) for key, pair in pairs.items()}
    ends = {}
    for key, (left, right) in pairs.items():
        shared = left.index.intersection(right.index)
        ends[key] = (float(left.loc[shared].mean()), float(right.loc[shared].mean()))
    return claimed(metric, means, name, ends)


def claimed(
    metric: str,
    means: Mapping[Key, Mean],
    name: Callable[[Key], tuple[str, ...]],
    ends: Mapping[Key, tuple[float, float]] | None = None,
    **fields: Any,
) -> dict[Key, Claim]:
    """Claims on mean differences, with p values adjusted together by Holm's method."""
    from trm.analysis.stats import holm

    found = {}
    for (key, mean), p in zip(means.items(), holm([mean.p for mean in means.values()])):
        subject, against, *place = name(key)
        verdict: Outcome = "corrected" if mean.sign else "open"
        if not mean.n:
            verdict = "none"
        elif mean.bounds is None:
            verdict = "single"
        elif p is not None and p < ALPHA:
            verdict = "higher" if mean.value > 0 else "lower"
        more: dict[str, Any] = {"ends": (ends or {}).get(key), "place": "".join(place), **fields}
        found[key] = Claim(
            metric, subject, against, mean.value, mean.bounds, verdict, pairs=mean.n, p=p, **more
        )
    return found


def level(metric: str, subject: str, mean: Mean, more: str = "", **fields: Any) -> Claim:
    """A value alone."""
    return Claim(metric, subject, "", mean.value, mean.bounds, "none", "level", more=more, **fields)


# words ---------------------------------------------------------------------------------------------------------------


def sentences(found: Iterable[Claim]) -> str:
    """All claims in sentences; those of one metric, measure and place share a sentence."""
    alike = groupby(
        found, lambda c: (c.measure, c.metric, c.place, c.against if c.measure == "difference" else "")
    )
    return " ".join(_group_sentences([*group]) for _, group in alike)


def answer(found: Sequence[Claim]) -> str:
    """The claim that counts most, in one sentence: of differences the largest established one and how many others
    there are; of laws of several places all exponents; else everything."""
    known = [claim for claim in found if claim.counts and claim.measure != "interaction"]
    if not known:
        return ""
    first = known[0]
    if first.measure == "difference":
        crossed = [claim for claim in found if claim.measure == "interaction" and claim.interval]
        return _largest([c for c in known if c.measure == "difference"], crossed)
    laws = {(claim.metric, claim.subject) for claim in known if claim.measure in ("power", "change")}
    if len(laws) == 1 and len({claim.place for claim in known}) > 1:
        return _exponents(known)
    alike = [claim for claim in known if (claim.measure, claim.metric) == (first.measure, first.metric)]
    if first.measure == "level" and len({claim.place for claim in alike}) == 1:
        return sentences(alike)
    return sentence("; ".join(map(_short, alike))) + "."


def strength(found: Iterable[Claim]) -> float | None:
    """Strength of the best established claim; None: none is."""
    return max((claim.strength for claim in found if claim.counts and claim.sign), default=None)


def _group_sentences(group: list[Claim]) -> str:
    if group[0].measure == "difference" and len(group) > 1:
        text = _differences(group)
    elif group[0].measure == "level" and len(group) > 1:
        text = _levels(group)
    else:
        return " ".join(f"{sentence(_short(claim))}.{claim.notes}" for claim in group)
    return sentence((f"at {group[0].place}, " if group[0].place else "") + text) + "."


def _short(claim: Claim) -> str:
    """The claim after its place."""
    apart = claim.place and claim.measure != "interaction"
    return f"at {claim.place}, {claim.text()}" if apart else claim.text()


def _levels(group: list[Claim]) -> str:
    """A few values, or the smallest and the largest of many."""
    name, few = noun(group[0].metric), len(group) <= NAMED
    named = (
        group
        if few
        else [min(group, key=lambda claim: claim.value), max(group, key=lambda claim: claim.value)]
    )
    shown = listed([f"{claim.amount}{claim.more} ({claim.subject})" for claim in named])
    return f"the {name} {_is(name)} {shown if few else f'between {shown}'}"


def _is(name: str) -> str:
    """The verb of a name: its first noun is what counts, as in `gap between puzzles`."""
    first = name.split(" of ")[0].split(" between ")[0]
    return "are" if first.endswith("s") and not first.endswith("ss") else "is"


def _differences(group: list[Claim]) -> str:
    """Several values against one: which are higher, which lower, which not known to differ."""
    first, total = group[0], len(group)
    parts = []
    alone = next((claim.alone for claim in group if claim.verdict == "single"), "")

    def names(here: list[Claim], how: Callable[[Claim], str]) -> str:
        if len(here) > NAMED:
            sizes = sorted(abs(claim.value) for claim in here)
            amounts = " to ".join(
                one_unit(*(changed(first.metric, size, sign=False) for size in (sizes[0], sizes[-1])))
            )
            return f"{len(here)} of {total} others ({amounts})"
        return listed([f"{claim.subject} ({how(claim)}{claim.more and ', ' + claim.more})" for claim in here])

    for verdict in ("higher", "lower"):
        here = [claim for claim in group if claim.verdict == verdict]
        if here:
            parts.append(f"it is {verdict} with {names(here, lambda claim: claim.size)}")
    for verdict, words in (
        ("open", "no difference is established for"),
        ("corrected", "after correction for several comparisons none is established for"),
        ("single", f"{alone}, no interval for"),
        ("none", "no seed is shared with"),
    ):
        here = [claim for claim in group if claim.verdict == verdict]
        if here:
            shown = names(here, lambda claim: claim.amount)
            parts.append(f"{words} {listed([c.subject for c in here]) if verdict == 'none' else shown}")
    head = f"{noun(first.metric)} with {first.against}"
    base = next((claim.ends[0] for claim in group if claim.ends and claim.ends[0] == claim.ends[0]), None)
    return (
        f"{head} is {measured(first.metric, base)}; {'; '.join(parts)}"
        if base is not None
        else "; ".join(parts)
    )


def _largest(known: list[Claim], crossed: list[Claim]) -> str:
    """The largest established difference of the first place with one, how many others there are, whether they hold
    elsewhere."""
    place = next((claim.place for claim in known if claim.sign), known[0].place)
    known = [claim for claim in known if claim.place == place and claim.pairs]
    if not known:
        return "No two values share a seed: nothing is compared."
    sure = [claim for claim in known if claim.sign]
    top = max(sure or known, key=lambda claim: abs(claim.value))
    text, others, also = _short(top), len(known) - 1, len(sure) - 1
    if also == others == 1 and (rest := _second(top, next(claim for claim in sure if claim is not top))):
        text += rest
    elif sure and others:
        verb = "differs too" if also == 1 else "differ too" if also else "is established to differ"
        which = f"of {others} others, {also or 'none'}" if others > 1 else "the other"
        text += f"; {which} {verb if also or others > 1 else 'is not established to differ'}"
    elif others and top.interval:
        most = max(abs(bound) for claim in known for bound in claim.interval or (0.0,))
        text = f"{noun(top.metric)} differs from that with {top.against} by no more than "
        text += f"{changed(top.metric, most, sign=False)} at any other value: no difference established"
    if crossed:
        differ = sum(bool(claim.sign) for claim in crossed)
        places = {claim.place for claim in crossed}
        at = places.pop() if len(places) == 1 else "other settings"
        text += f"; at {at}, {differ or 'none'} of {count(len(crossed), 'effect')} changes"
    return sentence(text) + "."


def _second(top: Claim, other: Claim) -> str:
    """The only other established difference, after the sentence of the largest; empty: it has other ends."""
    if not top.ends or not other.ends or (top.against, top.ends[0]) != (other.against, other.ends[0]):
        return ""
    verb = "" if top.sign == other.sign else "rises " if other.sign > 0 else "falls "
    last = measured(other.metric, other.ends[1])
    return f", and {verb}to {last} with {other.subject} ({other.amount})"


def _exponents(known: list[Claim]) -> str:
    """The laws of several places side by side."""
    held = [claim for claim in known if claim.measure == "power"]
    first, places = known[0], len({claim.place for claim in known})
    if not held:
        return sentence(
            f"{noun(first.metric)} follows no supported law of {first.subject} at any of {places} settings."
        )
    parts = [
        f"{claim.amount} at {claim.place}" if claim in held else f"no law at {claim.place}" for claim in known
    ]
    text = f"{noun(first.metric)} follows a power of {first.subject} for {len(held)} of {count(places, 'setting')}: "
    return sentence(text + ", ".join(parts)) + "."


def span(low: float, high: float, unit: str) -> str:
    """A range in words: `between 10 and 1,000 puzzles`."""
    return f"between {number(low)} and {number(high)} {unit}".rstrip()


def one_unit(first: str, last: str) -> tuple[str, str]:
    """Two amounts of which only the last has its unit, if it is the same."""
    unit = first.partition(" ")[2]
    return (first.removesuffix(" " + unit) if unit and unit == last.partition(" ")[2] else first), last
