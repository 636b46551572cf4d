"""Every sentence of a small report like the laptop's, word for word: findings, verdicts, answers, captions, and
what the notebook shows.

After a change that is meant: GOLDEN=write python -m pytest tests/analysis/test_report_words.py
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.analysis.conftest import compare_with_golden, figure, inputs
from trm.analysis.drawing import styled, words_of
from trm.analysis.kinds import draw
from trm.analysis.notebook import Picture
from trm.analysis.report import build
from trm.analysis.specs import ReportSpec
from trm.analysis.tables import Table
from trm.io import dump, sha256_file
from trm.study.records import sealed

GOLDEN = Path(__file__).with_name("report_words.json")
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "inference": {
        "question": "Does a small model solve unseen puzzles, and how much of that is recursion?",
        "hypothesis": "From less than 5 % at the first supervision step to more than 80 % at the eighth.",
        "expects": [{"where": {"eval_steps": 1}, "below": 0.05}, {"where": {"eval_steps": 8}, "above": 0.8}],
        "figures": [{"kind": "unroll"}, {"kind": "curves"}, {"kind": "steps"}],
    },
    "isoflop": {
        "question": "Where is training compute best spent, in width or in steps?",
        "hypothesis": "The best width grows as a power of compute between a tenth and a half.",
        "expects": [{"metric": "cross_entropy", "exponent": "model.d_model", "between": [0.1, 0.5]}],
        "figures": [
            {"kind": "isoflop"},
            {"kind": "isoflop", "y": "error"},
            {"kind": "law", "x": "train_flops", "y": "cross_entropy", "hue": "model.d_model", "envelope": True},
        ],
    },
    "two_decades": {
        "question": "How does the error fall with training compute?",
        "hypothesis": "A power law.",
        "expects": [{"metric": "error", "law": "train_flops"}],
        "figures": [{"kind": "law", "x": "train_flops", "target": 0.8}],
    },
    "data_size": {
        "question": "How does the error fall with the number of unique training puzzles?",
        "hypothesis": "A power law.",
        "expects": [{"metric": "cross_entropy", "law": "data.train_puzzles"}],
        "figures": [{"kind": "law", "x": "data.train_puzzles", "y": "cross_entropy"}],
    },
    "recursion": {
        "question": "What do more latent updates buy?",
        "hypothesis": "Accuracy rises with n and with T.",
        "expects": [{"where": {"model.l_cycles": 2}, "than": {"model.l_cycles": 1}}],
        "figures": [{"kind": "ablation", "x": "model.l_cycles"}],
    },
    "unroll": {
        "question": "What do more supervision steps buy at test time?",
        "hypothesis": "More than 10 points for every width.",
        "expects": [{"where": {"model.d_model": 64, "eval_steps": 8}, "than": {"model.d_model": 64, "eval_steps": 1}}],
        "figures": [{"kind": "unroll"}, {"kind": "ablation", "x": "model.d_model"}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def spec(study: Path, tables: dict[str, Table], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report's spec; its figures are drawn, but pictures of one pixel stand for them."""
    out = tmp_path_factory.mktemp("words")
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1)).save(pixel, "png")
    entries = []
    for name, fields in EXPERIMENTS.items():
        files: dict[str, list[str]] = {"fits": [], "figures": []}
        for index, wanted in enumerate(figure(**item) for item in fields["figures"]):
            given, fits = inputs(tables, name, wanted)
            with styled():
                facts = words_of(draw(wanted, given, fits))
            path = out / f"{name}-{index}.pdf"
            path.write_bytes(b"")
            path.with_suffix(".png").write_bytes(pixel.getvalue())
            own = {
                "name": path.stem,
                "sha256": {end: sha256_file(path.with_suffix(end)) for end in (".pdf", ".png")},
            }
            path.with_suffix(".json").write_text(dump(sealed({**facts, **own, "svg": "", "narrow": ""})))
            files["figures"].append(str(path))
            for number, fit in enumerate(fits):
                (out / f"{name}-{index}-{number}.json").write_text(dump(fit))
                files["fits"].append(str(out / f"{name}-{index}-{number}.json"))
        table = str(study / "tables" / f"{name}.csv")
        entries.append({**fields, **files, "name": name, "table": table, "planned_hours": 0.05})
    report = {"study": "synthetic", "scale": "laptop", "intro": "The task is 4x4 Sudoku."}
    return report | {"experiments": entries}


def words(spec: dict[str, Any]) -> dict[str, Any]:
    """All that the report says."""
    report = build(ReportSpec.model_validate(spec))
    sections = {
        section.spec.name: {
            "answer": section.answer,
            "verdict": section.verdict,
            "figures": {block.title: [block.sentence, block.caption] for block in section.figures},
        }
        for section in report.sections
    }
    keys = ("scope", "findings", "limits", "problems")
    return json.loads(dump({**{key: getattr(report, key) for key in keys}, "sections": sections}))


def test_every_sentence_of_the_report_is_as_read(spec: dict[str, Any]) -> None:
    compare_with_golden(GOLDEN, words(spec))


def test_the_notebook_says_what_the_report_says(tables: dict[str, Table], spec: dict[str, Any]) -> None:
    wanted = figure(kind="ablation", x="model.l_cycles")
    with styled():
        shown = Picture(draw(wanted, *inputs(tables, "recursion", wanted)))
    ((said, _),) = words(spec)["sections"]["recursion"]["figures"].values()
    assert repr(shown) == said
