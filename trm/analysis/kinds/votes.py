"""`votes`: ARC tasks solved without voting, by the first answer of a vote, and with two attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.findings import level
from trm.analysis.labels import Label
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Figure
from trm.analysis.words import count, listed, percent
from trm.errors import UserError

WAYS = {
    "fixed": "no vote: the task as it is",
    "vote_first": "vote, one attempt",
    "vote": "vote, two attempts",
}
VOTES = ("vote_first", "vote")
MOST = 30
"""Most tasks or families drawn one by one."""


class Spec(Figure):
    """Shares of tasks solved, and which ones: by family (a task is named FAMILY-NUMBER) if they are many."""

    kind: Literal["votes"] = "votes"
    reading: ClassVar[str] = (
        "tasks solved without voting, by the first answer of the vote, and with the two attempts that "
        "ARC allows"
    )


def by_task(found: Mapping[str, float], tasks: float) -> str:
    """Which tasks every seed solves, and which none. found: share of seeds that solve each task, or of a family's tasks
    solved."""
    if found and len(found) < tasks:
        return " By family: " + ", ".join(f"{name} {percent(share)}" for name, share in found.items()) + "."
    always = [name for name, share in found.items() if share > 1 - 1e-6]
    never = [name for name, share in found.items() if share < 1e-6]
    text = f" Every seed solves {listed(always)}." if always else ""
    return text + (f" No seed solves {listed(never)}." if never else "")


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Left: share of tasks solved in each way. Right: which tasks, if there are few."""
    table = tables[0]
    rows = {way: _rows(table, spec, way) for way in WAYS}
    if not len(rows["vote"]):
        raise UserError(f"no evaluation of {table.experiment} let copies vote: the task must be arc")
    known = [table.extra("tasks", row) or [] for _, row in rows["vote"].iterrows()]
    tasks = known[0]
    same = all([t["task"] for t in each] == [t["task"] for t in tasks] for each in known)
    names = [task["task"] for task in tasks] if same else []
    if len(names) > MOST:
        names = [name.split("-")[0] for name in names]
    each = 0 < len(set(names)) <= MOST
    height = max(1.9, 0.75 + 0.19 * len(set(names))) if each else 1.9
    figure, axes = common.panels(2 if each else 1, height)
    found = {way: _share(axes[0], at, part) for at, (way, part) in enumerate(rows.items())}
    axes[0].set_yticks(range(len(WAYS)), [common.wrap(name, 20) for name in WAYS.values()])
    axes[0].set_ylim(len(WAYS) - 0.5, -0.5)
    first, second = (_shares(names, [[t[way] for t in each] for each in known]) for way in VOTES)
    if each:
        _tasks(axes[1], first, second)
    for axis, text in zip(
        axes, ("tasks solved", "tasks of it solved" if len(tasks) > MOST else "seeds that solve it")
    ):
        common.axis_scale(axis, "x", Label(text, percent=True), log=False)
        axis.set_xlim(-0.03, 1.03)
        axis.grid(axis="y", visible=False)
    total = float(rows["vote"]["puzzles"].iloc[0])
    copies = int(rows["vote"]["restarts"].max())
    return common.Drawing(
        figure,
        rows["vote"],
        title="ARC tasks solved with two attempts",
        caption=(
            f"Each task in {copies} versions, turned and recoloured, whose answers vote. Small marks: seeds."
            + " Right: the bar with the first attempt alone." * each
        ),
        findings=[level("tasks_solved", WAYS[way], mean) for way, mean in found.items()],
        remarks=f"{count(int(total), 'task')} in all.{by_task(second if each else {}, total)}",
    )


def _rows(table: Table, spec: Spec, way: str) -> pd.DataFrame:
    """A way's rows, one a run; of the fixed policy the deepest."""
    rows = table.select({**spec.where, "policy": way})
    return rows.sort_values("eval_steps").drop_duplicates("run", keep="last")


def _shares(names: list[str], solved: list[list[float]]) -> dict[str, float]:
    """Mean over runs and over the tasks of a name; solved: of each run, of each task."""
    tasks = np.mean(solved, axis=0) if names else np.zeros(0)
    return {name: float(np.mean([tasks[i] for i, own in enumerate(names) if own == name])) for name in names}


def _share(axes: Axes, at: int, rows: pd.DataFrame) -> stats.Mean:
    """One way's seeds, mean and interval."""
    data = rows["exact_accuracy"].to_numpy(float)
    summary = common.mean_of(data, "exact_accuracy", float(rows["puzzles"].iloc[0]))
    colour = common.OKABE_ITO[0] if at else common.GREY
    common.seed_marks(axes, at, data, colour, seeds_at=at + 0.14, summary=summary, sideways=True)
    return summary


def _tasks(axes: Axes, first: dict[str, float], second: dict[str, float]) -> None:
    """A line for each task from none of the seeds to the share that solves it."""
    style: dict[str, Any] = {"color": common.OKABE_ITO[0], "zorder": 3}
    for at, (name, share) in enumerate(second.items()):
        axes.plot([0, share], [at, at], linewidth=1.2, **style)
        axes.plot(first[name], at, "|", markersize=8, mew=1.6, **style)
        axes.plot(share, at, "o", markersize=4.2, **style)
    common.heading(axes, "Which tasks")
    axes.set_yticks(range(len(second)), list(second))
    axes.set_ylim(len(second) - 0.4, -0.6)
