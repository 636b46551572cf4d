"""Identity and sizes of maze data."""

from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import Cell, DataShape, OfficialFiles, TaskSpec

CHARACTERS = "# SGo"
"""Characters of tokens 1 to 5."""
WALL, OPEN, START, GOAL, PATH = 1, 2, 3, 4, 5


class MazeSpec(TaskSpec):
    """Squares of maze_size rows."""

    sources = ("generate", "csv", "official")
    blank = OPEN
    difficulty = "length of the shortest path"
    symmetric = True
    most_copies = 7

    # one public project pins the same digests
    official = OfficialFiles(
        "sapientinc/maze-30x30-hard-1k",
        "549754de3d67eebe57b6b22c7d226b9412d55b07",
        {
            "train.csv": "25f9e39b5aee16967da41ba63b2d1d75cf608c2360d8a1419d827f9859dbafa0",
            "test.csv": "5120d52088fb3f8036e62e90103808a79ba58847d8601f9451f40991b0903a62",
        },
        first_revision="549754de3d67eebe57b6b22c7d226b9412d55b07",
    )
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
        if data.walls != "random" and (data.unique_path or data.maze_size % 2 == 0):
            raise UserError(
                f"data.walls={data.walls} makes perfect mazes: "
                + (
                    "their paths are unique without data.unique_path; leave it out"
                    if data.unique_path
                    else f"data.maze_size must be odd, not {data.maze_size}"
                )
            )

    def fields(self, data: DataConfig) -> dict[str, Any]:
        return {"maze_size": data.maze_size}

    def generated_fields(self, data: DataConfig) -> dict[str, Any]:
        # later fields: names of older data sets must not change
        later = {"unique_path": data.unique_path, "walls": data.walls if data.walls != "random" else ""}
        return {"min_path": data.min_path} | {name: value for name, value in later.items() if value}

    def recognises(self, seq_len: int, vocab_size: int) -> bool:
        return vocab_size == 1 + len(CHARACTERS)

    def glyph(self, token: int) -> str:
        return CHARACTERS[token - 1] if token else ""

    def is_given(self, token: int) -> bool:
        return self.glyph(token) in ("#", "S", "G")

    def cell(self, token: int, wrong: bool) -> Cell:
        glyph = self.glyph(token)
        colour = "#4a4a4a" if glyph == "#" else "#9CCBE8" if glyph == "o" and not wrong else ""
        return Cell(glyph if glyph in ("S", "G") else "", colour)


SPEC = MazeSpec()
