"""The tasks: Sudoku, mazes, ARC-AGI. To add one, add a folder and a line in `trm.study.schema.TASKS`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trm.study.schema import TASKS

if TYPE_CHECKING:
    from trm.tasks.base import Task


def task_of(name: str) -> Task:
    """The task called `name`, imported when first needed."""
    task: Task = import_module(f"{TASKS[name]}.task").TASK
    return task
