"""The tasks: Sudoku, mazes, ARC-AGI. A new one is its folder and a line in TASKS (docs/extending.md)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trm.tasks.base import Task

TASKS = {
    "sudoku": "trm.tasks.sudoku.task",
    "maze": "trm.tasks.maze.task",
    "arc": "trm.tasks.arc.task",
}
"""Name -> module with its TASK."""


def task_of(name: str) -> Task:
    """The task called `name`; its module is loaded when it is first asked for."""
    found: Task = import_module(TASKS[name]).TASK
    return found
