"""Kill -9 in the middle of a run, then the same command again: it finishes, and no run starts again from zero."""

import json
import os
import signal
import subprocess
import sys
import time
from copy import deepcopy

import pytest

from tests.pipeline.conftest import STUDY, new_project

STEPS = 400


@pytest.fixture
def long_run(tmp_path):
    """A study of one run that checkpoints many times."""
    study = deepcopy(STUDY)
    study["scales"] = {"laptop": study["scales"]["laptop"]}
    study["scales"]["laptop"] |= {
        "seeds": [0],
        "runtime": {"log_every": 10, "evals": 1, "checkpoint_minutes": 0.0005},
    }
    study["scales"]["laptop"]["base"]["training"]["steps"] = STEPS
    study["experiments"] = {"one": {"question": "One?", "figures": [{"kind": "curves"}]}}
    study["figures"] = []
    return new_project(tmp_path, study)


def start(project):
    command = [sys.executable, "-m", "trm", "study", "run", "--profile", "profiles/local", "--cores", "1"]
    return subprocess.Popen(
        command,
        cwd=project.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for_checkpoint(project, process):
    deadline = time.monotonic() + 120
    while not list((project.folder / "results/checkpoints").glob("*/step-*/manifest.json")):
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < deadline, "no checkpoint came"
        os.sched_yield()


@pytest.mark.parametrize("whole_group", [True, False], ids=["everything", "only the launcher"])
def test_a_killed_build_goes_on_from_its_checkpoint(long_run, whole_group):
    process = start(long_run)
    wait_for_checkpoint(long_run, process)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    second = start(long_run)
    assert second.wait(timeout=300) == 0
    (training,) = (long_run.folder / "results/runs").glob("*/training.json")
    result = json.loads(training.read_text())
    assert result["outcome"] == "finished"
    assert result["steps"] == STEPS
    if whole_group:
        assert result["resumes"] >= 1
    assert (long_run.folder / "results/report.html").exists()
    assert long_run.would_run() == {}
