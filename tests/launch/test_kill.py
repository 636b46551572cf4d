"""Kill -9 in the middle of a run, then the same command again: it finishes, and no run starts again from zero."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import warm
from tests.pipeline.conftest import new_project, one_run

STEPS = 400


@pytest.fixture
def long_run(tmp_path):
    """A study of one run that checkpoints many times."""
    return new_project(tmp_path, one_run(STEPS, log_every=10, checkpoint_minutes=0.0005))


COMMANDS = {"study run": ["trm", "study", "run"], "snakemake": ["snakemake"]}


def start(project, command="study run", **options):
    words = [sys.executable, "-m", *COMMANDS[command], "--profile", "profiles/local", "--cores", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return warm.Popen(words, cwd=project.folder, start_new_session=True, **quiet | options)


def wait_for_checkpoint(project, process):
    deadline = time.monotonic() + 120
    while not list((project.folder / "results/checkpoints").glob("*/step-*/manifest.json")):
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.01)


@pytest.mark.parametrize("whole_group", [True, False], ids=["everything", "only the controller"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_build_goes_on_from_its_checkpoint(long_run, command, whole_group):
    process = start(long_run, command)
    wait_for_checkpoint(long_run, process)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    if whole_group:
        long_run.would_run()
        assert "1 run of these will go on from a checkpoint" in long_run.said
    second = start(long_run, command)
    assert second.wait(timeout=300) == 0
    (training,) = (long_run.folder / "results/runs").glob("*/training.json")
    result = json.loads(training.read_text())
    assert result["outcome"] == "finished"
    assert result["steps"] == STEPS
    if whole_group:
        assert result["resumes"] >= 1
    assert (long_run.folder / "results/report.html").exists()
    assert long_run.would_run() == {}


def test_a_living_snakemake_keeps_its_locks(long_run):
    """`study run` waits for it; a second plain Snakemake is refused by Snakemake itself."""
    first = start(long_run, "snakemake")
    try:
        wait_for_checkpoint(long_run, first)
        waiting = start(long_run, stderr=subprocess.PIPE, text=True)
        try:
            assert f"another run (process {first.pid}) is active" in waiting.stderr.readline()
            assert any((long_run.folder / ".snakemake/locks").iterdir())
            second = start(long_run, "snakemake", stderr=subprocess.PIPE, text=True)
            assert "cannot be locked" in second.communicate(timeout=120)[1]
            assert second.returncode != 0
            assert any((long_run.folder / ".snakemake/locks").iterdir())
        finally:
            os.killpg(waiting.pid, signal.SIGKILL)
            waiting.communicate()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()


@pytest.mark.parametrize(
    ("command", "send", "number"),
    [
        ("snakemake", os.killpg, signal.SIGINT),
        ("snakemake", os.killpg, signal.SIGTERM),
        ("study run", os.kill, signal.SIGTERM),  # which passes it on
        ("study run", os.kill, signal.SIGINT),
        ("study run", os.killpg, signal.SIGINT),  # Ctrl-C, which reaches Snakemake twice
    ],
)
def test_a_signal_writes_no_report(long_run, command, send, number):
    """Whoever interrupts does not wait for a partial report."""
    process = start(long_run, command, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(long_run, process)
    send(process.pid, number)
    said = process.communicate(timeout=120)[1]
    assert process.returncode != 0
    assert "partial report" not in said
    assert not (long_run.folder / "results/partial").exists()
