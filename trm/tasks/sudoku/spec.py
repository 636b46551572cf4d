"""What names and sizes depend on of Sudoku."""

from __future__ import annotations

from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import DataShape, TaskSpec


class SudokuSpec(TaskSpec):
    """Grids of box_rows * box_cols rows."""

    sources = ("generate", "csv", "official", "mix")

    def side(self, data: DataConfig) -> int:
        return data.box_rows * data.box_cols

    def shape(self, data: DataConfig) -> DataShape:
        return DataShape(self.side(data) ** 2, self.side(data) + 2, 1)

    def check(self, data: DataConfig) -> None:
        if data.source == "official" and (data.box_rows, data.box_cols) != (3, 3):
            raise UserError(
                f"the official Sudoku are 9x9, not {data.box_rows}x{data.box_cols} boxes: "
                "set data.box_rows and data.box_cols to 3, or data.source to generate"
            )
        cells = self.side(data) ** 2
        if data.source == "generate" and data.clues_max >= cells:
            raise UserError(
                f"data.clues_max={data.clues_max} leaves nothing to solve in {cells} cells: lower it"
            )
        if data.source == "generate" and data.clues_min > data.clues_max:
            raise UserError(f"data.clues_min={data.clues_min} is above data.clues_max={data.clues_max}")

    def fields(self, data: DataConfig) -> dict[str, Any]:
        return {"box_rows": data.box_rows, "box_cols": data.box_cols}

    def generated_fields(self, data: DataConfig) -> dict[str, Any]:
        return {"clues_min": data.clues_min, "clues_max": data.clues_max, "min_rating": data.min_rating}

    def generates_all(self, data: DataConfig) -> bool:
        return self.side(data) == 4


SPEC = SudokuSpec()
