"""The report as a paper: abstract, limits, what would change our mind, references. Written from the results alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from trm.analysis.labels import label
from trm.analysis.laws import followed
from trm.analysis.report.contents import Finding, Section
from trm.analysis.specs import ReportSpec
from trm.analysis.words import count, duration, estimate, listed, measured, noun, number

ABSTRACT = 150
"""Most words of the abstract, numbers not counted: every finding brings its interval."""
REFERENCES = (
    ("Jolicoeur-Martineau 2025, Less is More: Recursive Reasoning with Tiny Networks", "2510.04871"),
    ("Wang et al. 2025, Hierarchical Reasoning Model", "2506.21734"),
    ("Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (isoFLOP curves)", "2203.15556"),
    (
        "Hestness et al. 2017, Deep Learning Scaling is Predictable, Empirically (laws with a floor)",
        "1712.00409",
    ),
    ("Muennighoff et al. 2023, Scaling Data-Constrained Language Models", "2305.16264"),
    ("McCandlish et al. 2018, An Empirical Model of Large-Batch Training", "1812.06162"),
    ("Hesterberg 2015, What Teachers Should Know about the Bootstrap", "1411.5279"),
)


def size(sections: Sequence[Section], runs: Mapping[str, Any], parameters: Sequence[int] = ()) -> str:
    """What the study consists of: `61 runs, 3 seeds each, 12 min of device time`. `parameters`: of the models that have
    run, to name their sizes."""
    seeds = sorted({section.seeds for section in sections if section.seeds})
    many = (
        f"{seeds[0]} to {seeds[-1]} seeds each"
        if seeds[1:]
        else f"{count(seeds[0] if seeds else 0, 'seed')} each"
    )
    hours = sum(run["device_seconds"] for run in runs.values()) / 3600
    sizes = (
        " to ".join(f"{value:,}" for value in sorted({min(parameters), max(parameters)}))
        if parameters
        else ""
    )
    models = f" of models with {sizes} parameters" if sizes else ""
    return f"{count(len(runs), 'run')}{models}, {many}, {duration(hours)} of device time"


def abstract(
    spec: ReportSpec,
    sections: Sequence[Section],
    found: Sequence[Finding],
    runs: Mapping[str, Any],
    parameters: Sequence[int] = (),
) -> str:
    """At most ABSTRACT words: what was asked, of what, what was found, how sure, and the verdicts. `parameters`: of the
    models that have run."""
    done = f"The study is {size(sections, runs, parameters)}; brackets are 95 % intervals over seeds."
    opening = [spec.question, spec.intro, done]
    states = [section.verdict.state for section in sections if section.verdict]
    tally = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    sure = [item.text for item in found if item.established]
    open_ = len(found) - len(sure)
    closing = [f"{count(open_, 'question')} ended without an established effect."] if open_ else []
    closing += [f"Of {count(len(states), 'hypothesis', 'hypotheses')}: {listed(tally)}."] if states else []
    room = ABSTRACT - words(" ".join([*opening, *closing]))
    kept: list[str] = []
    for text in sure:
        short = text.split(" A fit without the largest point")[0]
        if words(" ".join([*kept, short])) <= room:
            kept.append(short)
    return " ".join(filter(None, [*opening, *kept, *closing]))


def words(text: str) -> int:
    """The number of words with a letter."""
    return sum(any(letter.isalpha() for letter in word) for word in text.split())


def limits(sections: Sequence[Section], fits: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the numbers do not say."""
    found = [
        "Intervals describe retraining on the same data: another data set, task or recipe may move every number.",
        "Every law holds for the variable and the range that it names, and for the recipe of this study.",
    ]
    refused = [group for fit in fits for group in fit["groups"] if group.get("doubts")]
    if refused:
        found.append(f"No power law is claimed of {count(len(refused), 'fit')}; each says why.")
    lonely = [section.spec.name for section in sections if section.seeds == 1]
    if lonely:
        found.append(f"One seed only: {listed(lonely)}. Nothing is said there about other seeds.")
    untested = [section.spec.name for section in sections if section.untested]
    if untested:
        found.append(f"Hypotheses that this grid cannot test: {listed(untested)}.")
    return found


def refutations(fits: Sequence[Mapping[str, Any]], sections: Sequence[Section]) -> list[str]:
    """What result would change our mind, for each law claimed and each hypothesis supported."""
    found = []
    for fit in fits:
        group, spec = fit["groups"][0], fit["spec"]
        if spec["form"] == "isoflop" and followed(group):
            low, high = group["law"]["intervals"]["a"]
            shown = estimate(group["law"]["parameters"]["a"], (low, high))
            found.append(
                f"New seeds, or larger budgets, that give the best {noun(spec['x'])} against {noun(spec['second'])} "
                f"another exponent than {shown}, judged by {noun(spec['y'])}."
            )
        form = (group.get("forms") or {}).get(group.get("chosen")) or {}
        if group.get("doubts", True) or group.get("chosen") in (None, "constant") or not form.get("curve"):
            continue
        x, y, low, high = (form["curve"][key] for key in ("x", "y", "low", "high"))
        index = min(range(len(x)), key=lambda i: abs(x[i] - 2 * group["range"][0][1]))
        bounds = measured(spec["y"], y[index], (low[index], high[index]))
        name, metric = noun(spec["x"]), noun(spec["y"])
        at = f"{number(x[index])} {label(spec['x']).unit or name}"
        found.append(
            f"A run at {at}, twice the largest point of its law, with {metric} outside its interval: {bounds}."
        )
    for section in sections:
        of_laws = all(item.law or item.exponent for item in section.spec.expects)  # said above
        if section.verdict and section.verdict.state == "supported" and not of_laws:
            found.append(
                f"New seeds that show the opposite of what {section.spec.name} found: {section.verdict.why}."
            )
    return list(dict.fromkeys(found))
