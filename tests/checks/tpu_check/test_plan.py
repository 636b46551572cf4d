"""The plan takes step times from programs that tpu-check compiled, and places jobs by runs per hour."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import planned
from trm.checks.tpu_check.check import program_key
from trm.pipeline import estimates as module
from trm.pipeline import plan
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project, open_project
from trm.study.slices import parse_slice


@pytest.fixture
def project() -> Project:
    return open_project({"scale": "tpu", "experiments": "data_size"})


@pytest.fixture
def checked(monkeypatch, tmp_path) -> Path:
    monkeypatch.setattr(module, "CHECKED", tmp_path)
    return tmp_path


def keep(folder: Path, project: Project, run: str, where: str, milliseconds: float, **more: Any) -> None:
    answer = {"fits": True, "cycles": round(milliseconds * 1.05e6), "collectives": {}}
    answer |= {"peak_gib": 1.0} | more
    key = program_key(project.runs[run].config, parse_slice(where), "train")
    (folder / f"{key}.json").write_text(json.dumps(answer))


def test_compiled_step_times_replace_those_from_flops(project, checked):
    run = next(iter(project.runs))
    before = Estimates(project).of(run)
    assert not before.compiled
    assert "compiled estimate for 0 of" in plan.text(planned(project))

    keep(checked, project, run, "v4-8", 40.0)
    after = Estimates(project)
    fixed = after.hardware.fixed
    assert after.of(run).compiled
    assert Estimates(project, measured=False).of(run) == before  # what the documentation says
    assert after.of(run).seconds == pytest.approx(fixed + 0.040 * after.of(run).steps)
    assert "step time compiled" in after.sentence(run)
    document = planned(project)
    rows = {row["run"]: row["compiled"] for row in document["runs"]}
    assert all(rows.values())  # runs of one shape are one program
    assert f"compiled estimate for {len(rows)} of {len(rows)} runs" in plan.text(document)

    # what does not fit says nothing
    keep(checked, project, run, "v4-8", 40.0, fits=False)
    assert Estimates(project).of(run) == before


def test_hosts_of_a_job_by_runs_per_hour(project, checked, monkeypatch):
    run = next(iter(project.runs))
    keep(checked, project, run, "v4-8", 80.0)
    keep(checked, project, run, "v4-64", 12.0)
    assert len(project.runs) >= 8
    assert Estimates(project).hosts(run) == 1  # eight side by side: a run every 10 ms of step time
    # a single run is done sooner by all hosts
    monkeypatch.setattr(project.study, "runs", {run: project.runs[run]})
    assert Estimates(project).hosts(run) == 8
    assert Estimates(project).launcher(run) == "tpurun"
    keep(checked, project, run, "v4-64", 85.0)  # the host's share of a small step
    assert Estimates(project).hosts(run) == 1
