"""`bins`: accuracy by difficulty, that is, by the number of clues or the rating of the test puzzles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.findings import Finding, level
from trm.analysis.labels import Label, label
from trm.analysis.lazy import Table, common, np
from trm.analysis.specs import Column, Figure
from trm.analysis.words import sentence, setting_in_words
from trm.errors import UserError
from trm.study.tasks import spec_of


class Spec(Figure):
    """One curve for each value of `hue`; below, how many test puzzles each bin holds."""

    kind: Literal["bins"] = "bins"
    reads: ClassVar[tuple[str, ...]] = ("bins",)
    reading: ClassVar[str] = "accuracy by difficulty, with the binomial interval of each bin"
    by: Literal["clues", "rating"] = "clues"
    """What the test puzzles are sorted by."""
    hue: Column | None = None
    """One curve for each value; null: the only coordinate, or the grid point."""


def bounds_of(item: Mapping[str, Any]) -> str:
    """`30–31`, `17`; `unknown` for puzzles without a rating."""
    low, high = item["from"], item["to"]
    return "unknown" if high < 0 else f"{low:g}" if low == high else f"{low:g}–{high:g}"


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Above: accuracy of each bin. Below: puzzles in it."""
    table = tables[0]
    rows = table.select(spec.where, [spec.hue] if spec.hue else [])
    found_bins: list[Any] = []
    for _, run in rows.iterrows():
        counted = [
            item["bins"][spec.by]
            for item in table.extra("bins", run) or []
            if spec.by in item["bins"]
            and (item["split"], item["policy"], item["steps"]) == ("test", "fixed", run["eval_steps"])
        ]
        found_bins.append(counted[0] if counted else None)
    rows = rows.assign(_bins=found_bins)
    rows = rows[rows["_bins"].map(bool)]
    if not len(rows):
        raise UserError(f"no evaluation of {table.experiment} counted its puzzles by {label(spec.by).name}")
    key = common.varied(spec.hue, table, rows)
    parts = common.groups(rows, key)
    shades = common.colours(list(parts))
    ticks = {bounds_of(item): float(item["from"]) for cells in rows["_bins"] for item in cells}
    names = sorted(ticks, key=ticks.__getitem__)
    figure, axes = common.canvas(common.ONE, 3.3, 2, 1, sharex=True, height_ratios=[4, 1])
    above, below = axes[:, 0]
    found: list[Finding] = []
    word = label(spec.by).name if spec.by == "clues" else spec_of(rows["data.task"].iloc[0]).difficulty
    for index, (value, part) in enumerate(parts.items()):
        means = {}
        for at, name in enumerate(names):
            counted = [item for cells in part["_bins"] for item in cells if bounds_of(item) == name]
            cells = [item for item in counted if item["puzzles"]]
            if not cells:
                continue
            shares = np.array([item["correct"] / item["puzzles"] for item in cells])
            mean = means[name] = common.mean_of(shares, "exact_accuracy", cells[0]["puzzles"])
            x = at + (index - (len(parts) - 1) / 2) * 0.5 / len(parts)
            marker = common.MARKERS[index % 8]
            common.binomial_bar(above, x, mean.value, cells[0]["puzzles"])
            common.seed_marks(above, x, shares, shades[value], marker, seeds_at=x - 0.07, summary=mean)
            if index == 0:
                below.bar(at, float(np.mean([item["puzzles"] for item in cells])), 0.7, color="#c4c4c4")
        where, named = (
            setting_in_words(key, value) if key else "",
            "{} clues" if word == "clues" else f"{word} {{}}",
        )
        ends = list(dict.fromkeys([next(iter(means)), list(means)[-1]]))
        found += [level("exact_accuracy", named.format(name), means[name], place=where) for name in ends]
    below.set_xticks(range(len(names)), names, **({"rotation": 45, "ha": "right"} if len(names) > 8 else {}))
    below.set_xlabel(sentence(word))
    common.axis_scale(above, "y", label("exact_accuracy"), log=False)
    above.set_ylabel("Exact accuracy (%)")  # the whole name is longer than the panel
    above.set_ylim(-0.02, 1.02)
    common.axis_scale(below, "y", Label("puzzles"), log=False)
    common.hue_legend(figure, key, shades)
    return common.Drawing(
        figure,
        rows,
        title=f"Accuracy by {word}",
        caption=(
            "Above: exact accuracy of each bin, seeds faint; grey: the puzzles' interval. Below: its puzzles."
        ),
        findings=found,
    )
