"""A small study file that tests vary."""

from copy import deepcopy

import pytest
import yaml

from trm.study.grid import load_study

STUDY = {
    "name": "test",
    "scales": {"small": {"seeds": [0, 1]}},
    "base": {
        "model": {"d_model": 64},
        "data": {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_max": 8},
    },
    "experiments": {
        "width": {"question": "Does width matter?", "grid": {"product": {"model.d_model": [32, 64]}}},
        "rows": {"question": "Do rows matter?", "grid": {"product": {"training.rows": [7680, 76800]}}},
    },
}


@pytest.fixture
def study():
    """The study document; change it, then write it with `study_file`."""
    return deepcopy(STUDY)


@pytest.fixture
def study_file(tmp_path):
    """Writes a study document and returns its path."""

    def write(document, name="experiments.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    return write


@pytest.fixture
def points(study, study_file):
    """Points of an experiment whose grid is replaced."""

    def find(grid, experiment="rows", scale="small"):
        study["experiments"][experiment]["grid"] = grid
        return load_study(study_file(study), scale).experiment(experiment).points

    return find
