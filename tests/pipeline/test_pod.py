"""The whole pipeline on an emulated pod of two hosts with a preemption: the short form of `make rehearsal`."""

from copy import deepcopy

import pytest
import yaml

from snakemake_executor_plugin_tpu.emulator import why_not
from tests.pipeline.conftest import ROOT
from tests.rehearsal import rehearse


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_a_figure_asked_for_comes_back_through_a_preemption(tmp_path):
    document = deepcopy(yaml.safe_load((ROOT / "config/experiments.yaml").read_text()))
    scale = document["scales"]["rehearsal"] | {"seeds": [0], "report": ["data_size"], "study": ["data_size"]}
    scale["base"]["training"]["steps"] = 100
    scale["base"]["data"]["test_puzzles"] = 100
    document["scales"] = {"rehearsal": scale, "laptop": scale}
    data_size = document["experiments"]["data_size"]
    short = data_size["scales"]["rehearsal"]
    document["experiments"] = {"data_size": data_size | {"scales": {"rehearsal": short, "laptop": short}}}
    study = tmp_path / "experiments.yaml"
    study.write_text(yaml.safe_dump(document, sort_keys=False))
    outcome = rehearse(tmp_path / "rehearsal", "v4-16", study, least_runs=2)
    assert outcome.failures == [], "\n".join(outcome.rows)
