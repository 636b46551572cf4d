"""What names and sizes depend on of mazes."""

from __future__ import annotations

from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import DataShape, TaskSpec


class MazeSpec(TaskSpec):
    """Squares of maze_size rows."""

    sources = ("generate", "csv", "official")

    published = (1_000, 1_000)

    def side(self, data: DataConfig) -> int:
        return data.maze_size

    def shape(self, data: DataConfig) -> DataShape:
        return DataShape(data.maze_size**2, 6, 1)

    def check(self, data: DataConfig) -> None:
        if data.source == "official" and data.maze_size != 30:
            raise UserError(
                f"the official mazes are 30x30, not {data.maze_size}: set data.maze_size to 30, "
                "or data.source to generate"
            )

    def fields(self, data: DataConfig) -> dict[str, Any]:
        return {"maze_size": data.maze_size}

    def generated_fields(self, data: DataConfig) -> dict[str, Any]:
        # unique_path is a later field: the names of older data sets stay as they were
        return {"min_path": data.min_path} | ({"unique_path": True} if data.unique_path else {})


SPEC = MazeSpec()
