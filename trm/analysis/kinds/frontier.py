"""`frontier`: accuracy against test-time FLOPs for every way to spend them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from trm.analysis.findings import Finding, compared, contrast
from trm.analysis.labels import label
from trm.analysis.laws import law_findings
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import Figure, FitSpec
from trm.analysis.words import number, setting_in_words
from trm.errors import UserError

POLICIES = {
    "fixed": ("more supervision steps", "#0072B2", "o", "-"),
    "confident": ("stopping on the halt logit", "#009E73", "s", "-"),
    "restarts": ("the best attempt by halt logit", "#D55E00", "^", "-"),
    "majority": ("majority vote over attempts", "#CC79A7", "v", "--"),
    "oracle": ("any attempt right", "#7F7F7F", "D", "--"),
}
"""Policy -> words, colour, mark, line."""
RUNNABLE = ("fixed", "confident", "restarts")
"""Policies that a user could run."""


class Spec(Figure):
    """Fixed steps, stop when confident, restarts; for comparison majority vote and oracle."""

    kind: Literal["frontier"] = "frontier"
    reading: ClassVar[str] = (
        "accuracy bought by compute at test time: more steps, stopping when confident, attempts"
    )

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        return (FitSpec(experiments=(experiment,), x="flops_per_puzzle", where=self.where),)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel for each hue value or grid point; the sentence is about the first."""
    table = tables[0]
    rows = test_rows(table, spec.where)
    hue = "label" if rows["label"].nunique() > 1 else None
    parts = common.groups(rows, hue)
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    figure, axes = common.panels(len(parts), 2.9, sharey=True)
    for axis, (value, part) in zip(axes, parts.items()):
        panel(axis, part)
        if hue:
            common.heading(axis, common.plain(setting_in_words(hue, value)))
    styles = [POLICIES[policy] for policy in POLICIES if (rows["policy"] == policy).any()]
    handles = [
        common.entry(axes[0], name, color=colour, marker=marker, linestyle=line)
        for name, colour, marker, line in styles
    ]
    common.legend(figure, handles, 2)
    first, part = next(iter(parts.items()))
    findings = gains(part, setting_in_words(hue, first) if hue else "")
    if not hue:
        findings += law_findings(fit["groups"][0], "flops_per_puzzle")
    return common.Drawing(
        figure,
        rows,
        title="Accuracy against test-time compute",
        caption="Faint: seeds. Dashed: for comparison, as no user can choose so. Numbers: supervision steps.",
        findings=findings,
        remarks=""
        if findings
        else "The reference evaluation, with as many steps as in training, was not measured.",
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
        seeds, puzzles = part.groupby("seed")["exact_accuracy"].mean(), float(part["puzzles"].iloc[0])
        found = common.mean_of(seeds, "exact_accuracy", puzzles)
        low, high = found.bounds or (np.nan, np.nan)
        lines.append((part["flops_per_puzzle"].mean(), found.value, low, high, steps, restarts))
    frame = pd.DataFrame(lines, columns=["flops", "value", "low", "high", "eval_steps", "restarts"])
    return frame.sort_values("flops", ignore_index=True)


def gains(rows: pd.DataFrame, where: str = "") -> list[Finding]:
    """What each policy gains at its largest cost, against the reference: as many steps as in training, no restart.

    The setting is chosen by its cost, not by its result, so that no comparison profits from a selection. A loss, or a
    gain that no user could have, is never the answer.
    """
    base = rows[(rows["policy"] == "fixed") & (rows["eval_steps"] == rows["model.halt_max_steps"])]
    if not len(base):
        return []
    left, price = base.groupby("seed")["exact_accuracy"].mean(), float(base["flops_per_puzzle"].mean())
    contrasts, costs = {}, {}
    for policy in POLICIES:
        settings = summarise(rows, policy)
        if not len(settings):
            continue
        top = settings.iloc[-1]
        same = (rows["eval_steps"] == top["eval_steps"]) & (rows["restarts"] == top["restarts"])
        here = rows[same & (rows["policy"] == policy)].groupby("seed")["exact_accuracy"].mean()
        if policy == "fixed" and top["flops"] == price:
            continue
        contrasts[policy] = contrast(left, here, POLICIES[policy][0], "the steps of training", where)
        costs[policy] = f"{', ' if where else ''}{number(top['flops'] / price, 2)} times the compute"
    return [
        replace(found, place=found.place + costs[policy], counts=policy in RUNNABLE and found.sign >= 0)
        for policy, found in compared("exact_accuracy", contrasts).items()
    ]


def panel(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw all policies into one panel."""
    for policy, (_, colour, marker, line) in POLICIES.items():
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
    common.axis_scale(axes, "x", label("flops_per_puzzle"), rows["flops_per_puzzle"].to_numpy())
    common.axis_scale(axes, "y", label("exact_accuracy"), rows["exact_accuracy"].to_numpy(), log=False)
