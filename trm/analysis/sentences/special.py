"""Sentences of the laws with two variables, of batch sizes, halting and inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trm.analysis.labels import label
from trm.analysis.stats.batch import Cost
from trm.analysis.words import count, interval, listed, number, percent, percents, value_name


def optimum_sentence(group: Mapping[str, Any], x: str, second: str) -> str:
    """How the best x moves with the second variable."""
    thing, other = label(x).name, label(second).name
    if "optima" not in group:
        return f"The best {thing} cannot be followed over {other}: {group['error']}."
    edges = [item for item in group["optima"] if item["edge"]]
    parts = []
    law = group.get("law")
    if law:
        slope, bounds = law["parameters"]["a"], (law.get("intervals") or {}).get("a")
        shown = f"{number(slope, 2)}{interval(bounds)}"
        if bounds is not None and bounds[0] <= 0 <= bounds[1]:
            parts.append(f"The best {thing} shows no certain trend with {other} (exponent {shown}).")
        else:
            verb = "rises" if slope > 0 else "falls"
            parts.append(f"The best {thing} {verb} with the power {shown} of {other}.")
        if not law["borne"]:
            parts.append(f"({law['points']} optima do not test a power law.)")
    else:
        parts.append(
            f"No power law of the best {thing} in {other}: fewer than two optima lie inside the grid."
        )
    if edges:
        where = ", ".join(value_name(item["second"]) for item in edges)
        parts.append(f"At {other} {where} the best {thing} lies at the edge of the grid.")
    return " ".join(parts)


def inference_sentence(gains: Mapping[str, Any]) -> str:
    """What each way of spending test-time compute adds to the reference evaluation."""
    reference = gains["reference"]
    if reference["flops"] is None:
        return "The reference evaluation (as many steps as in training) was not measured."
    price = number(reference["flops"])
    text = f"The reference evaluation solves {percent(reference['value'])} at {price} FLOPs a puzzle."
    names = {
        "fixed": "Another number of supervision steps",
        "confident": "Stopping on the halt logit",
        "restarts": "Picking among restarts by the halt logit",
        "majority": "Majority vote over restarts",
        "oracle": "The oracle over restarts",
    }
    for policy, name in names.items():
        item = gains.get(policy)
        if not item or (item["flops"] == reference["flops"] and policy == "fixed"):
            continue
        ratio = item["flops"] / reference["flops"]
        shown = f"{100 * item['change']:+.1f}".replace("-", "−") + interval(
            (item["low"], item["high"]), 2, 100
        )
        sure = item["low"] is not None and (item["low"] > 0 or item["high"] < 0)
        verb = ("adds" if item["change"] > 0 else "loses") if sure else "makes no certain difference:"
        text += f" {name} {verb} {shown} percentage points at {number(ratio, 2)} times the compute"
        text += (
            f" ({item['restarts']} restarts)."
            if item["restarts"] > 1
            else f" (at most {item['steps']} steps)."
        )
    return text


def inference_answer(gains: Mapping[str, Any]) -> str:
    """The best that a user could run, against the reference evaluation."""
    known = {name: gains[name] for name in ("fixed", "confident", "restarts") if name in gains}
    reference = gains["reference"]
    if not known or reference["flops"] is None:
        return inference_sentence(gains)
    name = max(known, key=lambda key: known[key]["value"])
    item = known[name]
    ways = {"fixed": "more steps", "confident": "stopping on the halt logit", "restarts": "restarts"}
    sure = item["low"] is not None and (item["low"] > 0 or item["high"] < 0)
    ratio = number(item["flops"] / reference["flops"], 2)
    shown = f"{percent(reference['value'])} to {percent(item['value'])}"
    bounds = interval((item["low"], item["high"]), 2, 100)
    if not sure:
        return f"Test-time compute makes no certain difference: {shown} ({100 * item['change']:+.1f}{bounds} points)."
    return (
        f"Test-time compute lifts accuracy from {shown} ({100 * item['change']:+.1f}{bounds} points) by {ways[name]}, "
        f"at {ratio} times the compute."
    )


def halting_sentence(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """Mean steps at which puzzles halt, smallest and largest."""
    ranked = sorted(numbers, key=lambda name: numbers[name]["mean_steps"])

    def shown(name: str) -> str:
        item = numbers[name]
        bounds = interval((item["low"], item["high"]), 3)
        return f"{number(item['mean_steps'], 3)}{bounds} of {int(item['most'])} steps"

    if len(ranked) == 1:
        item = numbers[ranked[0]]
        return (
            f"Puzzles halt after {shown(ranked[0])} on average; {percent(item['halted'])} halt by themselves."
        )
    low, high = ranked[0], ranked[-1]
    return f"Puzzles halt after {shown(low)} on average with {low}, and after {shown(high)} with {high}."


def batch_sentence(
    groups: Mapping[float, Mapping[str, Any]],
    costs: Mapping[float, Sequence[Cost]],
    noise: Sequence[tuple[float, str]],
) -> str:
    """Critical batch for every target, what is never reached, and the noise scale."""
    parts = []
    for target, group in groups.items():
        goal = percent(target, 0)
        reached = [cost for cost in costs[target] if cost.reached]
        if not reached:
            parts.append(f"No batch size reaches {goal} validation accuracy.")
            continue
        if "forms" not in group:
            parts.append(f"The critical batch for {goal} could not be fitted: {group['error']}.")
            continue
        form = group["forms"]["critical_batch"]
        bounds = form.get("intervals") or {}
        value = form["parameters"]["B*"]
        parts.append(
            f"To {goal}, the critical batch is {number(value)}{interval(bounds.get('B*'))} puzzles and no batch takes "
            f"fewer than {number(form['parameters']['Smin'])}{interval(bounds.get('Smin'))} steps."
            + _doubts(form, group)
        )
        partly = [cost for cost in costs[target] if cost.reached < cost.runs]
        if partly:
            shown = ", ".join(f"{value_name(cost.batch)} ({cost.reached} of {cost.runs})" for cost in partly)
            parts.append(f"Not every seed reaches {goal} at batch size {shown}.")
    for value, how in noise:
        parts.append(f"The gradient noise scale is about {number(value, 2)} puzzles ({how}).")
    return " ".join(parts)


def repeated_sentence(group: Mapping[str, Any]) -> str:
    """What copies are worth."""
    if "forms" not in group:
        return f"The repeated-data law could not be fitted: {group['error']}."
    form = group["forms"]["repeated_data"]
    worth, bounds = form["parameters"]["R*"], (form.get("intervals") or {}).get("R*")
    slope, slopes = form["parameters"]["a"], (form.get("intervals") or {}).get("a")
    text = (
        f"Augmented copies of a puzzle are worth at most {number(worth)}{interval(bounds)} fresh puzzles, however "
        f"many; the error falls with the power {number(-slope, 2)}{interval(_flip(slopes))} of the effective number "
        "of puzzles."
    )
    return text + _doubts(form, group)


def joint_sentence(group: Mapping[str, Any]) -> str:
    """How the error falls in parameters and in compute."""
    if "forms" not in group:
        return f"No joint law of parameters and compute could be fitted: {group['error']}."
    form = group["forms"]["joint"]
    values, bounds = form["parameters"], form.get("intervals") or {}
    size, compute = (f"{number(-values[key], 2)}{interval(_flip(bounds.get(key)))}" for key in ("a", "b"))
    if form["at_bound"]:
        text = (
            "The joint law of parameters and training compute is not determined by these points: an exponent ran into "
            f"its bound (parameters {size}, compute {compute})."
        )
    else:
        text = (
            f"The reducible error falls with the power {size} of the parameters and {compute} of the training compute, "
            f"towards a floor of {percent(values['E'])}{percents(bounds.get('E'))}."
        )
    return text + _doubts(form, group)


def _flip(bounds: Sequence[float | None] | None) -> list[float] | None:
    if bounds is None or bounds[0] is None or bounds[1] is None:
        return None
    return [-bounds[1], -bounds[0]]


def _doubts(form: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    """What weakens a law with many parameters."""
    said = []
    if not form["borne"]:
        said.append(
            f"{count(group['points'], 'point')} do not test a law with {len(form['parameters'])} parameters"
        )
    if (form.get("failed_share") or 0) > 0.05:
        said.append(f"{100 * form['failed_share']:.0f} % of the refits failed")
    if (form.get("bound_share") or 0) > 0.05:
        said.append(f"in {100 * form['bound_share']:.0f} % of the refits an exponent ran into its bound")
    if group.get("interval") is None:
        said.append("one seed a point gives no interval")
    text = "; ".join(said)
    return f" ({text[:1].upper()}{text[1:]}.)" if said else ""


def steps_sentence(errors: Sequence[Sequence[int]]) -> str:
    """errors: wrong cells after each step, one list a puzzle."""
    solved = [puzzle for puzzle in errors if puzzle[-1] == 0]
    text = f"Of {count(len(errors), 'recorded puzzle')}, {len(solved)} end{'s' if len(solved) == 1 else ''} solved"
    if solved:
        first = [next(step for step, wrong in enumerate(puzzle, 1) if wrong == 0) for puzzle in solved]
        text += (
            f", after {min(first)} to {max(first)} steps"
            if min(first) != max(first)
            else f", after {count(first[0], 'step')}"
        )
    lost = [puzzle for puzzle in errors if 0 in puzzle[:-1] and puzzle[-1] > 0]
    if lost:
        was = "was" if len(lost) == 1 else "were"
        text += f"; {len(lost)} {was} right on the way and {was} lost again"
    return text + "."


def votes_sentence(
    found: Mapping[str, Mapping[str, float | None]], tasks: float, by_task: Mapping[str, float]
) -> str:
    """found: way of answering -> share of the tasks solved with its interval; by_task: share of seeds that solve it."""

    def shown(way: str) -> str:
        item = found[way]
        return percent(item["value"]) + interval((item["low"], item["high"]), 3, 100)

    text = (
        f"Of {count(int(tasks), 'task')}, two attempts by vote solve {shown('vote')}, the first one "
        f"{shown('vote_first')}, the unaltered task alone {shown('fixed')}."
    )
    if 0 < len(by_task) <= 30:
        always = [name for name, share in by_task.items() if share > 1 - 1e-6]
        never = [name for name, share in by_task.items() if share < 1e-6]
        if always:
            text += f" Every seed solves {listed(always)}."
        if never:
            text += f" No seed solves {listed(never)}."
    return text


def frontier_sentence(kept: Sequence[tuple[str, float, float]], column: str) -> str:
    """The two ends and the best of a study-wide frontier."""
    what = "training compute" if column == "train_flops" else "test-time compute a puzzle"
    if not kept:
        return f"Nothing was measured against {what}."
    name, cost, value = kept[-1]
    first = kept[0]
    if len(kept) == 1:
        return f"No measured point beats {percent(value)}, reached at the lowest {what}: {number(cost)} FLOPs ({name})."
    return (
        f"On the frontier of {what}, accuracy rises from {percent(first[2])} at {number(first[1])} FLOPs ({first[0]}) "
        f"to {percent(value)} at {number(cost)} FLOPs ({name})."
    )
