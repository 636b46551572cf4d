"""Writes golden_fingerprints.json; run by hand only when RECIPE_VERSION is raised or puzzles from
files are read in another way: python -m tests.study.make_golden"""

import json
from pathlib import Path

from trm.study.fingerprint import RECIPE_VERSION, run_fingerprint
from trm.study.schema import RunConfig

LAPTOP = {
    "source": "generate",
    "box_rows": 2,
    "box_cols": 2,
    "clues_min": 4,
    "clues_max": 8,
    "train_puzzles": 300,
    "augmentations": 0,
    "validation_puzzles": 200,
    "test_puzzles": 1000,
}
CONFIGS = [
    {},
    {"seed": 2},
    {"model": {"mixer": "attention", "position": "rope"}},
    {"model": {"d_model": 1024, "layers": 4}, "training": {"lr": 3e-4, "ema": 0.0, "optimizer": "lion"}},
    {"data": LAPTOP, "training": {"precision": "auto", "batch_size": 128, "steps": 400}},
    {"data": {"source": "csv", "files": ["a.csv"], "sha256": ["ab" * 32]}},
    {"data": {"task": "maze", "augmentations": 7}, "model": {"mixer": "attention", "l_cycles": 4}},
    {
        "training": {
            "curriculum": [{"until": 0.5, "h_cycles": 1, "l_cycles": 2}],
            "exploration_final": 0.05,
            "halting_cost": 0.01,
            "max_grad_norm": 1.0,
            "micro_batches": 2,
            "snapshots": 3,
        }
    },
]

if __name__ == "__main__":
    cases = [
        {
            "recipe_version": RECIPE_VERSION,
            "config": config,
            "fingerprint": run_fingerprint(RunConfig.model_validate(config)),
        }
        for config in CONFIGS
    ]
    Path(__file__).with_name("golden_fingerprints.json").write_text(json.dumps(cases, indent=1) + "\n")
