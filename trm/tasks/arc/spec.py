"""What names and sizes depend on of ARC-AGI."""

from __future__ import annotations

from typing import Any

from trm.study.schema import DataConfig
from trm.study.tasks import DataShape, TaskSpec


class ArcSpec(TaskSpec):
    """Square canvases of arc_side rows."""

    sources = ("json", "generate")
    votes = True

    def side(self, data: DataConfig) -> int:
        return data.arc_side

    def shape(self, data: DataConfig) -> DataShape:
        return DataShape(data.arc_side**2, 12, None)

    def fields(self, data: DataConfig) -> dict[str, Any]:
        # a later field: the names of older data sets stay as they were
        return {"arc_side": data.arc_side} if data.arc_side != 30 else {}


SPEC = ArcSpec()
