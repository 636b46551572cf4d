"""The notebooks run on a study's tables, and hold no outputs."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from trm.analysis.notebook import Picture, Results
from trm.errors import UserError

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture
def results(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder below a results folder."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "tables").symlink_to(study / "tables")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_something(path: Path, results: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    names: dict[str, Any] = {}
    shown = []
    for cell in cells:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
    pictures = [item for item in shown if isinstance(item, Picture)]
    assert len(pictures) >= 3
    assert all(picture._repr_png_().startswith(b"\x89PNG") for picture in pictures)


def test_results_are_found_above_or_missed_in_one_sentence(results: Path, tmp_path: Path) -> None:
    assert "data_size" in Results().experiments
    with pytest.raises(UserError, match="maze has no table"):
        Results().table("maze")
    with pytest.raises(UserError, match="build a report first"):
        Results(tmp_path / "nowhere")
