"""The whole pipeline on an emulated pod of two hosts with a preemption: the short form of `make rehearsal`."""

import pytest
import yaml

from snakemake_executor_plugin_tpu.emulator import why_not
from tests.pipeline.conftest import ROOT
from tests.rehearsal import rehearse


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_a_figure_asked_for_comes_back_through_a_preemption(tmp_path):
    document = yaml.safe_load((ROOT / "config/rehearsal.yaml").read_text())
    document["scales"]["rehearsal"]["seeds"] = [0]
    document["base"]["training"]["steps"] = 100
    document["base"]["data"]["test_puzzles"] = 100
    del document["experiments"]["model_size"]
    study = tmp_path / "rehearsal.yaml"
    study.write_text(yaml.safe_dump(document, sort_keys=False))
    outcome = rehearse(tmp_path / "rehearsal", "v4-16", study, least_runs=2)
    assert outcome.failures == [], "\n".join(outcome.rows)
