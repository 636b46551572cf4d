"""Identity and sizes of Sudoku data."""

import math
from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import DataShape, OfficialFiles, TaskSpec

CLASSES_4X4 = dict(zip(range(4, 16), (13, 96, 376, 711, 1040, 980, 788, 414, 210, 56, 22, 2)))
"""Number of clues -> number of classes of 4x4 Sudoku with one solution (`trm.tasks.sudoku.classes.classes_4x4`)."""


class SudokuSpec(TaskSpec):
    """Grids of box_rows * box_cols rows."""

    sources = ("generate", "csv", "official")

    # several independent public projects pin the same digests
    official = OfficialFiles(
        "sapientinc/sudoku-extreme",
        "58942f96baeb572ca3127e2a9e9c70f330783d6b",
        {
            "train.csv": "64b46674db0148e0d73a16346dadeb2b1c00824d3fca3f85b2ae7037f6b4b38e",
            "test.csv": "a2fd52aea23d331d5b4ee723c856236e838a9fb9a70e66f4e0e0cf26c338c6a8",
        },
        first_revision="58942f96baeb572ca3127e2a9e9c70f330783d6b",
    )
    published = (3_831_994, 422_786)
    blank = 1
    takes_hints = True
    boxed = True
    symmetric = True

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

    def sorted_by(self, data: DataConfig) -> tuple[str, ...]:
        if data.source != "generate":
            return ("clues", "rating")
        clues = ("clues",) * (not data.clues_max or data.clues_min < data.clues_max)
        return clues if self.side(data) == 4 else (*clues, "rating")  # 4x4 are solved without a guess

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

    def recognises(self, seq_len: int, vocab_size: int) -> bool:
        return vocab_size == math.isqrt(seq_len) + 2


SPEC = SudokuSpec()
