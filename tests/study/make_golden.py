"""Writes golden_fingerprints.json, for when RECIPE_VERSION is raised or puzzles from files are read in another way, and
golden_studies.json, for when the points of a study are changed on purpose: python -m tests.study.make_golden"""

import json
from pathlib import Path

from trm.pipeline.catalogue import dataset_name
from trm.study.fingerprint import RECIPE_VERSION, digest, run_fingerprint
from trm.study.grid import load_study
from trm.study.points import Point
from trm.study.schema import RunConfig

ROOT = Path(__file__).parents[2]
LAPTOP = {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8}
LAPTOP |= {"train_puzzles": 300, "augmentations": 0, "validation_puzzles": 200, "test_puzzles": 1000}
EVERYTHING = {
    "curriculum": [{"until": 0.5, "h_cycles": 1, "l_cycles": 2}], "exploration_final": 0.05, "halting_cost": 0.01,
    "max_grad_norm": 1.0, "micro_batches": 2, "snapshots": 3,
}  # fmt: skip
CONFIGS = [
    {},
    {"seed": 2},
    {"model": {"mixer": "attention", "position": "rope"}},
    {"model": {"d_model": 1024, "layers": 4}, "training": {"lr": 3e-4, "ema": 0.0, "optimizer": "lion"}},
    {"data": LAPTOP, "training": {"precision": "auto", "batch_size": 128, "steps": 400}},
    {"data": {"source": "csv", "files": ["a.csv"], "sha256": ["ab" * 32]}},
    {"data": {"task": "maze", "augmentations": 7}, "model": {"mixer": "attention", "l_cycles": 4}},
    {"training": EVERYTHING},
]

FILE = "gs://bucket/file#sha256=" + 64 * "0"
VARIABLES = {"sudoku_csv": FILE, "hardest_csv": FILE, "arc_files": FILE, "gpus": "8", "xla_python": "python"}
STUDIES = [(file, "") for file in ("laptop", "workstation", "rehearsal")]
STUDIES += [("experiments", scale) for scale in ("gpu", "tpu")]


def golden_studies() -> dict[str, dict[str, str]]:
    """Study -> experiment -> digest of the names of its points' runs, data sets and evaluations."""
    found = {}
    for file, scale in STUDIES:
        study = load_study(ROOT / f"config/{file}.yaml", scale, None, VARIABLES)
        found[study.scale_name] = {
            name: digest(sorted(map(_names, experiment.points)))[:8]
            for name, experiment in study.experiments.items()
        }
    return found


def _names(point: Point) -> list[str]:
    data = dataset_name(point.runs[0].config.data)
    return [point.label, data, point.evaluation_file, *(run.name for run in point.runs)]


if __name__ == "__main__":
    names = [run_fingerprint(RunConfig.model_validate(config)) for config in CONFIGS]
    cases = [
        {"recipe_version": RECIPE_VERSION, "config": config, "fingerprint": name}
        for config, name in zip(CONFIGS, names)
    ]
    for name, content in (("fingerprints", cases), ("studies", golden_studies())):
        Path(__file__).with_name(f"golden_{name}.json").write_text(json.dumps(content, indent=1) + "\n")
