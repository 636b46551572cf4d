"""Every sentence of every kind of figure on the synthetic study, word for word.

After a change that is meant: GOLDEN=write python -m pytest tests/analysis/test_sentences.py
"""

import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from tests.analysis.conftest import compare_with_golden, figure, saved
from tests.analysis.kinds.test_scaling_laws import PANELS
from trm.analysis.kinds import KINDS
from trm.analysis.tables import Table

GOLDEN = Path(__file__).with_name("sentences.json")
FIGURES: list[tuple[str, dict[str, Any]]] = [
    ("data_size", {"kind": "law", "x": "data.train_puzzles", "target": 0.85, "reported": [{"x": 1000, "y": 0.126}]}),
    ("data_size", {"kind": "law", "x": "data.train_puzzles", "y": "cross_entropy"}),
    ("augmentation", {"kind": "law", "x": "data.augmentations"}),
    ("model_size", {"kind": "law", "x": "parameters"}),
    ("", {"kind": "law", "x": "parameters", "hue": "experiment", "sources": ["model_size", "recursion"]}),
    ("compute", {"kind": "law", "x": "train_flops", "hue": "model.d_model", "envelope": True}),
    ("blocks", {"kind": "law", "x": "parameters"}),
    ("two_decades", {"kind": "law", "x": "train_flops", "target": 0.8, "also": ["parameters"]}),
    ("two_decades", {"kind": "isoflop"}),
    ("compute", {"kind": "surface"}),
    ("augmentation", {"kind": "surface", "form": "repeated_data"}),
    ("mixer", {"kind": "ablation", "x": "model.mixer", "second": ["wall_seconds", "peak_memory_bytes"]}),
    ("ema", {"kind": "ablation", "x": "training.ema", "hue": "training.batch_size"}),
    ("ema", {"kind": "ablation", "x": "evaluation.weights"}),
    ("blocks", {"kind": "ablation", "x": "model.d_model"}),
    ("recursion", {"kind": "heatmap", "x": "model.l_cycles", "y": "model.h_cycles"}),
    ("blocks", {"kind": "heatmap", "x": "model.d_model", "y": "model.layers"}),
    ("lr_batch", {"kind": "heatmap", "x": "training.lr", "y": "training.batch_size", "optimum": True}),
    ("data_size", {"kind": "curves", "metric": "train/loss"}),
    ("data_size", {"kind": "curves"}),
    ("compute", {"kind": "curves", "against": "flops"}),
    ("unroll", {"kind": "unroll"}),
    ("inference", {"kind": "frontier"}),
    ("unroll", {"kind": "frontier"}),
    ("inference", {"kind": "restarts"}),
    ("mixer", {"kind": "agreement"}),
    ("mixer", {"kind": "halting"}),
    ("batch_size", {"kind": "batch"}),
    ("batch_blocks", {"kind": "batch"}),
    ("inference", {"kind": "steps", "puzzles": 2}),
    ("", {"kind": "scaling_laws", "panels": PANELS}),
]  # fmt: skip


def owes_its_reader(files: list[Path]) -> None:
    """What the files of every figure hold."""
    facts = json.loads(files[2].read_text())
    assert all(facts[key] for key in ("title", "caption", "sentence", "answer", "inches"))
    for text in ("sentence", "answer", "caption"):
        assert not {"nan", "None", "inf", "–."} & set(facts[text].split())
    with Image.open(files[1]) as picture:
        assert min(picture.size) > 300
        about = picture.text["Description"]
    for word in ("study synthetic, scale laptop", " seed", "data ", "commit 0123456789ab"):
        assert word in about
    assert files[0].read_bytes().startswith(b"%PDF")


def test_every_figure_is_drawn_and_its_sentences_are_as_read(
    tables: dict[str, Table], tmp_path: Path
) -> None:
    """Title, sentence, answer, caption, and every finding of its table."""
    found = {}
    for experiment, spec in FIGURES:
        drawing, files = saved(tables, experiment, tmp_path / "figure.pdf", **spec)
        owes_its_reader(files)
        keys = ("title", "sentence", "answer", "caption")
        texts = {key: getattr(drawing, key) for key in keys}
        texts["findings"] = [item.text for item in drawing.findings]
        found[f"{experiment} {figure(**spec).slug}".strip()] = texts
    assert len(found) == len(FIGURES)
    compare_with_golden(GOLDEN, found)


def test_captions_and_findings_are_short() -> None:
    for name, texts in json.loads(GOLDEN.read_text()).items():
        assert len(texts["caption"].split()) <= 25, name
        for text in re.split(r"(?<=[.])\s+(?=[A-Z0-9“])", f"{texts['sentence']} {texts['answer']}"):
            assert len(text.split()) <= 30, text


def test_every_kind_but_those_of_real_files_is_pinned() -> None:
    assert set(KINDS) - {spec["kind"] for _, spec in FIGURES} == {"bins", "votes"}
