"""The kind of figure in docs/extending.md works as it is printed there."""

from trm.analysis import kinds
from trm.analysis.drawing import styled
from trm.analysis.tables import Table


def test_the_example_of_the_page_is_drawn(tables: dict[str, Table], printed, monkeypatch) -> None:
    monkeypatch.setitem(kinds.KINDS, "spread", printed("trm.analysis.kinds", "spread"))
    spec = kinds.adapter().validate_python({"kind": "spread", "y": "exact_accuracy"})
    with styled():
        drawing = kinds.draw(spec, [tables["mixer"]], [])
    assert drawing.sentence.startswith("Seeds differ most in exact accuracy at mixer=")
    assert drawing.sentence.endswith(" points.")
