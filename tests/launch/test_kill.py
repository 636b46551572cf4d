"""Kill -9 in the middle of a run, then the same command again: it finishes, and no run starts again from zero."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from tests import warm
from tests.pipeline.conftest import new_project, one_run

STEPS = 400


def study(folder, steps):
    """A study of one run that checkpoints many times."""
    return new_project(folder, one_run(steps, log_every=10, checkpoint_minutes=0.0005))


@pytest.fixture
def long_run(tmp_path):
    return study(tmp_path, STEPS)


COMMANDS = {"study run": ["trm", "study", "run"], "snakemake": ["snakemake"]}


def start(project, command="study run", until="train", **options):
    words = [sys.executable, "-m", *COMMANDS[command], "--profile", "profiles/local", "--cores", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words += ["--until", until]
    return warm.Popen(words, cwd=project.folder, start_new_session=True, **quiet | options)


def checkpoints(project):
    return set((project.folder / "results/checkpoints").glob("*/step-*/manifest.json"))


def wait_for_checkpoint(project, process, before=frozenset()):
    """Wait until there is one besides those `before`."""
    deadline = time.monotonic() + 120
    while not checkpoints(project) - before:
        assert process.poll() is None, "the run ended before it was killed"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.05)


def goes_on(project, command):
    """The same command again finishes the run."""
    assert start(project, command).wait(timeout=300) == 0
    (training,) = (project.folder / "results/runs").glob("*/training.json")
    result = json.loads(training.read_text())
    assert (result["outcome"], result["steps"]) == ("finished", STEPS)
    assert project.would_run("--until", "train") == {}
    return result


def test_a_build_goes_on_after_its_controller_alone_was_killed(long_run):
    process = start(long_run)
    wait_for_checkpoint(long_run, process)
    process.kill()
    process.wait()
    goes_on(long_run, "study run")


def test_a_living_snakemake_keeps_its_locks_and_a_killed_build_goes_on_from_its_checkpoint(long_run):
    """`study run` waits for the living one; a second plain Snakemake is refused by Snakemake itself."""
    locks = long_run.folder / ".snakemake/locks"
    first = start(long_run, "snakemake")
    jobs = []
    try:
        wait_for_checkpoint(long_run, first)
        jobs = psutil.Process(first.pid).children(recursive=True)
        for job in jobs:
            job.suspend()  # the run must not end before it is killed
        waiting = start(long_run, stderr=subprocess.PIPE, text=True)
        try:
            assert f"another run (process {first.pid}) is active" in waiting.stderr.readline()
            assert any(locks.iterdir())
            second = start(long_run, "snakemake", stderr=subprocess.PIPE, text=True)
            assert "cannot be locked" in second.communicate(timeout=120)[1]
            assert second.returncode != 0
            assert any(locks.iterdir())
        finally:
            os.killpg(waiting.pid, signal.SIGKILL)
            waiting.communicate()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        for job in jobs:
            with suppress(psutil.NoSuchProcess):
                job.resume()
    long_run.would_run()
    assert "1 run of these will go on from a checkpoint" in long_run.said
    assert goes_on(long_run, "snakemake")["resumes"] >= 1


SIGNALS = (
    ("snakemake", os.killpg, signal.SIGINT),
    ("snakemake", os.killpg, signal.SIGTERM),
    ("study run", os.kill, signal.SIGTERM),  # which passes it on
    ("study run", os.kill, signal.SIGINT),
)
"""Ctrl-C, which reaches Snakemake twice, is in test_console.py."""


def test_a_signal_writes_no_report(tmp_path):
    """Whoever interrupts does not wait for a partial report, though there is a run that it would show. Each command
    goes on with the run of the one before."""
    project = study(tmp_path, 2)
    project.snakemake("--cores", "1", "--until", "evaluate")
    before = checkpoints(project)
    grid = {"product": {"training.steps": [2, 1_000_000]}}
    project.edit(lambda study: study["experiments"]["one"].update(grid=grid))
    for command, send, number in SIGNALS:
        process = start(project, command, "all", stderr=subprocess.PIPE, text=True)
        wait_for_checkpoint(project, process, before)
        send(process.pid, number)
        said = process.communicate(timeout=120)[1]
        assert process.returncode != 0, (command, number)
        assert "partial report" not in said
        assert not (project.folder / "results/partial").exists()
        before |= checkpoints(project)
