"""The kind of figure in docs/extending.md works as it is printed there."""

import importlib
import sys
from pathlib import Path

from tests.training.test_extending import block
from trm.analysis import kinds
from trm.analysis.drawing import styled
from trm.analysis.tables import Table


def test_the_example_of_the_page_is_drawn(tables: dict[str, Table], tmp_path: Path, monkeypatch) -> None:
    name = "spread"
    (tmp_path / f"{name}.py").write_text(block(f"trm/analysis/kinds/{name}.py"))
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    module = importlib.import_module(f"trm.analysis.kinds.{name}")
    try:
        monkeypatch.setitem(kinds.KINDS, name, module)
        spec = kinds.adapter().validate_python({"kind": name, "y": "exact_accuracy"})
        with styled():
            drawing = kinds.draw(spec, [tables["mixer"]], [])
    finally:
        del sys.modules[module.__name__]
        delattr(kinds, name)
    assert drawing.sentence.startswith("Seeds differ most in exact accuracy at mixer=")
    assert drawing.sentence.endswith(" points.")
