"""`frontier`: accuracy against test-time FLOPs for every way to spend them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.claims import Claim, claims, strongest
from trm.analysis.kinds import law
from trm.analysis.labels import label
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure, FitSpec
from trm.analysis.words import compact, number, percent, place, points, sentence
from trm.errors import UserError

POLICIES = {
    "fixed": ("more supervision steps", "#0072B2", "o", "-"),
    "confident": ("stopping on the halt logit", "#009E73", "s", "-"),
    "restarts": ("picking among restarts by the halt logit", "#D55E00", "^", "-"),
    "majority": ("majority vote over restarts", "#CC79A7", "v", "--"),
    "oracle": ("any restart right (oracle)", "#7F7F7F", "D", ":"),
}
"""Policy -> words, colour, mark, line."""
RUNNABLE = ("fixed", "confident", "restarts")
"""Policies that a user could run."""


class Spec(Figure):
    """Fixed steps, stop when confident, restarts; for comparison majority vote and oracle."""

    kind: Literal["frontier"] = "frontier"
    reading: ClassVar[str] = (
        "accuracy bought by compute at test time: more steps, stopping when confident, restarts"
    )
    hue: Column | None = None
    """One panel for each value; null: one for each grid point."""
    fit: bool = True
    """Fit the error against test-time FLOPs of the fixed policy."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        if not self.fit:
            return ()
        where = {**self.where, "policy": "fixed"}
        fit = FitSpec(experiments=(experiment,), form="auto", x="flops_per_puzzle", hue=self.hue, where=where)
        return (fit,)


def gained(change: Claim) -> str:
    """A gain with its interval, and whether it is established."""
    text = points(change.value, change.interval)
    known = {"single": " in one seed", "open": ", not established"}
    corrected = ", not established after correction for several comparisons"
    return text + ("" if change.sign else known.get(change.verdict, corrected))


def inference_sentence(gains: Mapping[str, Any]) -> str:
    """What each way of spending test-time compute adds to the reference evaluation."""
    reference = gains["reference"]
    if reference["flops"] is None:
        return "The reference evaluation (as many steps as in training) was not measured."
    text = (
        f"The reference evaluation solves {percent(reference['value'])} at {compact(reference['flops'])} FLOPs a "
        "puzzle."
    )
    for policy, (name, *_) in POLICIES.items():
        item = gains.get(policy)
        if not item or (item["flops"] == reference["flops"] and policy == "fixed"):
            continue
        how = f"{'at most ' * (policy == 'confident')}{item['steps']} steps"
        how = f"{item['restarts']} restarts" if item["restarts"] > 1 else how
        ratio = number(item["flops"] / reference["flops"], 2)
        text += f" {sentence(name)}: {gained(item['claim'])}, at {ratio} times the compute ({how})."
    return text


def inference_answer(gains: Mapping[str, Any]) -> str:
    """The best that a user could run, against the reference evaluation."""
    known = {name: gains[name] for name in RUNNABLE if name in gains}
    reference = gains["reference"]
    if not known or reference["flops"] is None:
        return inference_sentence(gains)
    name = max(known, key=lambda key: known[key]["value"])
    item, how = known[name], POLICIES[name][0]
    change = item["claim"]
    if not change.sign and change.interval:
        largest = points(change.value, change.interval)
        return f"No gain from more compute at test time is established; the largest is {largest}, by {how}."
    return (
        f"Compute at test time changes accuracy from {percent(reference['value'])} to {percent(item['value'])} "
        f"({gained(change)}) by {how}, at {number(item['flops'] / reference['flops'], 2)} times the compute."
    )


def strength(gains: Mapping[str, Any]) -> float | None:
    """Largest established gain that a user could have, over half the width of its interval; None: there is none."""
    return strongest(
        gains[name]["claim"] for name in RUNNABLE if name in gains and gains[name]["claim"].sign > 0
    )


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel for each hue value or grid point; the sentence is about the first."""
    table = tables[0]
    rows = test_rows(table, spec.where)
    hue = spec.hue or ("label" if rows["label"].nunique() > 1 else None)
    parts = common.groups(rows, hue)
    found = spec.fits(table.experiment)
    fit = common.fit_of(fits, found[0]) if found else None
    figure, axes = common.panels(len(parts), 2.9, sharey=True)
    best: dict[str, tuple[float, float, str]] = {}
    for axis, (value, part) in zip(axes, parts.items()):
        best |= panel(axis, part)
        if hue:
            common.heading(axis, place(hue, value))
    styles = [POLICIES[policy] for policy in POLICIES if (rows["policy"] == policy).any()]
    handles = [
        common.entry(axes[0], name, color=colour, marker=marker, linestyle=line)
        for name, colour, marker, line in styles
    ]
    common.legend(figure, handles, 2)
    first, part = next(iter(parts.items()))
    found_gains = gains(part)
    words = inference_sentence(found_gains)
    if hue:
        words = f"{place(hue, first)}: {words[0].lower()}{words[1:]}"
    if fit and (spec.hue or not hue):
        body = law.group_sentence(fit["groups"][0], "flops_per_puzzle")
        words += f" With more supervision steps, {body[0].lower()}{body[1:]}"
    return common.Drawing(
        figure,
        rows,
        title="Accuracy against test-time compute",
        caption=(
            "Means over seeds with Student's 95 % interval; faint: seeds. Full lines spend compute as a user "
            "could; majority vote and the oracle (right if any restart is) are for comparison. Numbers along the "
            "blue line: supervision steps. Gains over the reference are tested on pairs of equal seeds, corrected "
            "by Holm's method."
        ),
        sentence=words,
        answer=inference_answer(found_gains),
        strength=strength(found_gains),
        claims=[item["claim"] for item in found_gains.values() if "claim" in item],
        numbers={
            "best": best,
            "gains": {
                name: {k: v for k, v in item.items() if k != "claim"} for name, item in found_gains.items()
            },
        },
    )


def test_rows(table: Table, where: Mapping[str, Any]) -> pd.DataFrame:
    """Every policy's rows on the test split. UserError: the evaluations hold no test-time FLOPs."""
    rows = pd.concat([table.select({**where, "policy": policy}) for policy in POLICIES], ignore_index=True)
    rows = rows[pd.to_numeric(rows["flops_per_puzzle"], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"no evaluation of {table.experiment} has test-time FLOPs: set evaluation.unroll")
    return rows


def summarise(rows: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Mean accuracy and cost of a policy at each setting, by rising cost: flops, value, low, high, eval_steps."""
    lines = []
    for (steps, restarts), part in rows[rows["policy"] == policy].groupby(
        ["eval_steps", "restarts"], sort=True
    ):
        found = common.mean_of(part.groupby("seed")["exact_accuracy"].mean(), "exact_accuracy")
        low, high = found.bounds or (np.nan, np.nan)
        lines.append((part["flops_per_puzzle"].mean(), found.value, low, high, steps, restarts))
    frame = pd.DataFrame(lines, columns=["flops", "value", "low", "high", "eval_steps", "restarts"])
    return frame.sort_values("flops", ignore_index=True)


def gains(rows: pd.DataFrame) -> dict[str, Any]:
    """What each policy reaches at its largest cost, against the reference: as many steps as in training, no restart.

    The setting is chosen by its cost, not by its result, so that no comparison profits from a selection.
    """
    base = rows[(rows["policy"] == "fixed") & (rows["eval_steps"] == rows["model.halt_max_steps"])]
    left = base.groupby("seed")["exact_accuracy"].mean()
    flops = float(base["flops_per_puzzle"].mean()) if len(base) else None
    found: dict[str, Any] = {"reference": {"value": float(left.mean()), "flops": flops}}
    changes = {}
    for policy in POLICIES:
        settings = summarise(rows, policy)
        if not len(settings):
            continue
        top = settings.iloc[-1]
        same = (rows["eval_steps"] == top["eval_steps"]) & (rows["restarts"] == top["restarts"])
        right = rows[same & (rows["policy"] == policy)].groupby("seed")["exact_accuracy"].mean()
        changes[policy] = stats.paired(left, right)
        found[policy] = {"value": float(top["value"]), "flops": float(top["flops"])}
        found[policy] |= {"steps": int(top["eval_steps"]), "restarts": int(top["restarts"])}
    made = claims("exact_accuracy", "the reference evaluation", changes, lambda name: POLICIES[name][0])
    for policy, change in made.items():
        found[policy]["claim"] = change
    return found


def panel(axes: Axes, rows: pd.DataFrame) -> dict[str, tuple[float, float, str]]:
    """Draw all policies into one panel; returns the best setting of each: FLOPs, accuracy, name."""
    best = {}
    for policy, (name, colour, marker, line) in POLICIES.items():
        settings = summarise(rows, policy)
        if not len(settings):
            continue
        part = rows[rows["policy"] == policy]
        style: dict[str, Any] = {"color": colour, "zorder": 3}
        seeds: dict[str, Any] = {"alpha": 0.3, "markersize": 2.6, "mew": 0}
        axes.plot(part["flops_per_puzzle"], part["exact_accuracy"], marker, **seeds, **style)
        axes.vlines(settings["flops"], settings["low"], settings["high"], color=colour, linewidth=1)
        axes.plot(settings["flops"], settings["value"], marker=marker, linestyle=line, markersize=4, **style)
        for _, point in settings.iterrows() if policy == "fixed" else ():
            steps = f"{int(point['eval_steps'])}"
            common.note(axes, steps, (point["flops"], point["value"]), (4, -8), color=colour)
        top = settings.nlargest(1, "value").iloc[0]
        best[policy] = (float(top["flops"]), float(top["value"]), name)
    common.axis_scale(axes, "x", label("flops_per_puzzle"), rows["flops_per_puzzle"].to_numpy())
    common.axis_scale(axes, "y", label("exact_accuracy"), rows["exact_accuracy"].to_numpy(), log=False)
    return best
