"""Every sentence of every kind of figure on the synthetic study, word for word.

After a change that is meant: GOLDEN=write python -m pytest tests/analysis/test_sentences.py
"""

import json
import re
from pathlib import Path
from typing import Any

from tests.analysis.conftest import compare_with_golden, figure, inputs
from trm.analysis.drawing import styled
from trm.analysis.kinds import KINDS, draw
from trm.analysis.tables import Table

GOLDEN = Path(__file__).with_name("sentences.json")
FIGURES: list[tuple[str, dict[str, Any]]] = [
    ("data_size", {"kind": "law", "x": "data.train_puzzles", "target": 0.85}),
    ("data_size", {"kind": "law", "x": "data.train_puzzles", "y": "cross_entropy"}),
    ("model_size", {"kind": "law", "x": "parameters"}),
    ("compute", {"kind": "law", "x": "train_flops", "hue": "model.d_model", "envelope": True}),
    ("blocks", {"kind": "law", "x": "parameters"}),
    ("two_decades", {"kind": "law", "x": "train_flops", "also": ["parameters"]}),
    ("two_decades", {"kind": "isoflop"}),
    ("compute", {"kind": "surface"}),
    ("augmentation", {"kind": "surface", "form": "repeated_data"}),
    ("mixer", {"kind": "ablation", "x": "model.mixer"}),
    ("ema", {"kind": "ablation", "x": "training.ema", "hue": "training.batch_size"}),
    ("recursion", {"kind": "heatmap", "x": "model.l_cycles", "y": "model.h_cycles"}),
    ("lr_batch", {"kind": "heatmap", "x": "training.lr", "y": "training.batch_size", "optimum": True}),
    ("data_size", {"kind": "curves"}),
    ("compute", {"kind": "curves", "against": "flops"}),
    ("unroll", {"kind": "unroll"}),
    ("inference", {"kind": "frontier"}),
    ("unroll", {"kind": "frontier"}),
    ("inference", {"kind": "restarts"}),
    ("mixer", {"kind": "agreement"}),
    ("mixer", {"kind": "halting"}),
    ("batch_size", {"kind": "batch"}),
    ("inference", {"kind": "steps", "puzzles": 2}),
    (
        "",
        {
            "kind": "scaling_laws",
            "panels": [
                {"experiment": "isoflop", "show": "curves"},
                {"experiment": "isoflop", "show": "loss"},
                {"experiment": "isoflop", "show": "best"},
                {"experiment": "inference", "show": "attempts"},
            ],
        },
    ),
]


def words(tables: dict[str, Table]) -> dict[str, dict[str, str]]:
    """Title, sentence, answer and caption of every figure."""
    found = {}
    for experiment, spec in FIGURES:
        wanted = figure(**spec)
        with styled():
            drawing = draw(wanted, *inputs(tables, experiment, wanted))
        keys = ("title", "sentence", "answer", "caption")
        found[f"{experiment} {wanted.slug}".strip()] = {key: getattr(drawing, key) for key in keys}
    return found


def test_every_sentence_is_as_read(tables: dict[str, Table]) -> None:
    compare_with_golden(GOLDEN, words(tables))


def test_captions_and_findings_are_short() -> None:
    for name, texts in json.loads(GOLDEN.read_text()).items():
        assert len(texts["caption"].split()) <= 25, name
        for text in re.split(r"(?<=[.])\s+(?=[A-Z0-9“])", f"{texts['sentence']} {texts['answer']}"):
            assert len(text.split()) <= 30, text


def test_every_kind_but_those_of_real_files_is_pinned() -> None:
    assert set(KINDS) - {spec["kind"] for _, spec in FIGURES} == {"bins", "votes"}
