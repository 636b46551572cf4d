"""What names and sizes depend on of Sudoku."""

from __future__ import annotations

from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import DataShape, TaskSpec

CLASSES_4X4 = dict(zip(range(4, 16), (13, 96, 376, 711, 1040, 980, 788, 414, 210, 56, 22, 2)))
"""Classes of 4x4 Sudoku with one solution by their number of clues (`trm.tasks.sudoku.small.classes_4x4`)."""


class SudokuSpec(TaskSpec):
    """Grids of box_rows * box_cols rows."""

    sources = ("generate", "csv", "official", "mix")

    published = (3_831_994, 422_786)

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

    def most_generated(self, data: DataConfig) -> int:
        if self.side(data) != 4 or not data.clues_max:
            return 0
        return sum(CLASSES_4X4.get(clues, 0) for clues in range(data.clues_min, data.clues_max + 1))

    def generates_all(self, data: DataConfig) -> bool:
        return self.side(data) == 4


SPEC = SudokuSpec()
