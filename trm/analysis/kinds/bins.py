"""`bins`: accuracy by difficulty, that is, by the number of clues or the rating of the test puzzles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trm.analysis.labels import Label, label
from trm.analysis.lazy import common, np
from trm.analysis.specs import Column, Figure
from trm.analysis.words import count, percent, place, sentence
from trm.errors import UserError

if TYPE_CHECKING:
    from trm.analysis.stats import Mean
    from trm.analysis.tables import Table


class Spec(Figure):
    """One curve for each value of `hue`; below, how many test puzzles each bin holds."""

    kind: Literal["bins"] = "bins"
    reading: ClassVar[str] = "accuracy by difficulty, with the binomial interval of each bin"
    by: Literal["clues", "rating"] = "clues"
    """What the test puzzles are sorted by."""
    hue: Column | None = None
    """One curve for each value; null: the only coordinate, or the grid point."""


def bins_sentence(name: str, by: str, first: tuple[str, Mean], last: tuple[str, Mean], puzzles: float) -> str:
    """The two ends of one curve."""
    return (
        f"{name}{': of ' if name else 'Of '}{count(int(puzzles), 'test puzzle')}, those with {label(by).name} "
        f"{first[0]} are solved in {percent(first[1].value, first[1].bounds)} of the cases, those with {last[0]} "
        f"in {percent(last[1].value, last[1].bounds)}."
    )


def bounds_of(item: Mapping[str, Any]) -> str:
    """`30–31`, `17`; `unknown` for puzzles without a rating."""
    low, high = item["from"], item["to"]
    return "unknown" if high < 0 else f"{low:g}" if low == high else f"{low:g}–{high:g}"


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Above: accuracy of each bin. Below: puzzles in it."""
    table = tables[0]
    rows = table.select(spec.where, [spec.hue] if spec.hue else [])
    known = {}
    for _, run in rows.iterrows():
        cells = _counted(table.info.get("bins", {}).get(run["run"]), spec.by, run["model.halt_max_steps"])
        if cells:
            known[run["run"]] = cells
    rows = rows[rows["run"].isin(known)]
    if not len(rows):
        raise UserError(f"no evaluation of {table.experiment} counted its puzzles by {label(spec.by).name}")
    key = common.varied(spec, table, rows)
    parts = common.groups(rows, key)
    shades = common.colours(list(parts))
    ticks = {bounds_of(item): float(item["from"]) for run in rows["run"] for item in known[run]}
    names = sorted(ticks, key=ticks.__getitem__)
    figure, axes = common.canvas(common.ONE, 3.3, 2, 1, sharex=True, height_ratios=[4, 1])
    above, below = axes[:, 0]
    sentences, numbers = [], {}
    for index, (value, part) in enumerate(parts.items()):
        means = {}
        for at, name in enumerate(names):
            cells = [
                item
                for run in part["run"]
                for item in known[run]
                if bounds_of(item) == name and item["puzzles"]
            ]
            if not cells:
                continue
            shares = np.array([item["correct"] / item["puzzles"] for item in cells])
            means[name] = common.mean_of(shares, "exact_accuracy")
            shift = (index - (len(parts) - 1) / 2) * 0.5 / len(parts)
            marker = common.MARKERS[index % 8]
            common.binomial_bar(above, at + shift, means[name].value, cells[0]["puzzles"])
            common.seed_marks(
                above,
                at + shift,
                shares,
                shades[value],
                marker,
                seeds_at=at + shift - 0.07,
                summary=means[name],
            )
            if index == 0:
                below.bar(at, float(np.mean([item["puzzles"] for item in cells])), 0.7, color="#c4c4c4")
        first, last = next(iter(means.items())), list(means.items())[-1]
        total = float(np.mean([sum(item["puzzles"] for item in known[run]) for run in part["run"]]))
        sentences.append(bins_sentence(place(key, value) if key else "", spec.by, first, last, total))
        numbers[str(value)] = {name: mean.value for name, mean in means.items()}
    below.set_xticks(range(len(names)), names, **({"rotation": 45, "ha": "right"} if len(names) > 8 else {}))
    below.set_xlabel(sentence(label(spec.by).name))
    common.axis_scale(above, "y", label("exact_accuracy"), log=False)
    above.set_ylabel("Exact accuracy (%)")  # the whole name is longer than the panel
    above.set_ylim(-0.02, 1.02)
    common.axis_scale(below, "y", Label("puzzles"), log=False)
    common.hue_legend(figure, key, shades)
    return common.Drawing(
        figure,
        rows,
        title=f"Accuracy by {label(spec.by).name}",
        caption=(
            "Above: exact accuracy of each bin after the supervision steps of training; faint: seeds, mean with "
            "Student's 95 % interval; grey: binomial 95 % interval of the test set. Below: its test puzzles."
        ),
        sentence=" ".join(sentences),
        answer=sentences[0],
        numbers={"accuracy": numbers},
    )


def _counted(results: list[dict[str, Any]] | None, by: str, steps: float) -> list[dict[str, Any]] | None:
    """The bins of the reference evaluation: test split, fixed policy, as many steps as in training, else the most."""
    fixed = [item for item in results or [] if item["split"] == "test" and item["policy"] == "fixed"]
    fixed = [item for item in fixed if by in item["bins"]]
    exact = [item for item in fixed if item["steps"] == steps] or sorted(
        fixed, key=lambda item: item["steps"]
    )
    return list(exact[-1]["bins"][by]) if exact else None
