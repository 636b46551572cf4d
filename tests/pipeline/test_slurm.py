"""When a job asks Slurm to start it again, with stand-ins for Slurm's commands (tests/slurm has the real ones)."""

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from trm.cli import main
from trm.cli.train import _resume_later
from trm.pipeline.slurm import job_id, minutes_left, requeue, stretch_minutes
from trm.pipeline.slurm_executor import Executor


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that makes a command print a text."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def make(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\necho {name} $* >> {tmp_path}/calls\n")
        (tmp_path / name).chmod(0o755)

    return make


def test_a_running_job_goes_back(commands, tmp_path):
    commands("squeue", "RUNNING")
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\n")
    (tmp_path / "scontrol").chmod(0o755)
    said = []

    def say(sentence):
        assert not (tmp_path / "asked").exists(), "Slurm may have ended this process by now"
        said.append(sentence)

    requeue(say)
    assert said == ["requeueing Slurm job 7: its next start resumes the run"]
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_a_cancelled_job_stays_cancelled(commands, tmp_path):
    commands("squeue", "COMPLETING")
    commands("scontrol", "")
    said = []
    requeue(said.append)
    assert said == ["Slurm job 7 is completing and is not requeued"]
    assert "scontrol" not in (tmp_path / "calls").read_text()


def test_what_slurm_refuses_is_said(commands):
    commands("squeue", "RUNNING")
    commands("scontrol", "Requested operation is presently disabled")
    said = []
    requeue(said.append)
    assert "cannot be requeued (Requested operation is presently disabled)" in said[-1]


def test_a_job_that_made_no_step_does_not_go_back(commands, capsys):
    _resume_later(0, 15.0, 15.0)
    assert capsys.readouterr().out == (
        "no step was finished in a job of 15 minutes: give jobs more time (max_runtime)\n"
    )


def test_a_limit_that_is_too_short_for_the_start_is_said(monkeypatch, capsys, tmp_path):
    """Slurm's warning comes while the program still imports, here while it opens the device."""

    def slow_start(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("trm.backends.registry.open_backend", slow_start)
    words = ["--dataset", "d", "--out", str(tmp_path / "o"), "--checkpoints", "c", "--time-limit", "1"]
    previous = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["train", "--config", "{}", *words])
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert ended.value.code == 143
    sentence = "no step was finished in a job of 1 minutes: give jobs more time (max_runtime)"
    assert sentence in capsys.readouterr().out


def test_a_task_of_an_array_is_named_as_such(monkeypatch):
    """One task bears the array's own id, by which Slurm's commands mean all tasks."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert job_id() == "12"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert job_id() == "12_3"


@pytest.mark.parametrize(
    ("text", "minutes"), [("4:30", 4.5), ("1:00:00", 60), ("2-01:00:00", 2940), ("UNLIMITED", None)]
)
def test_the_time_that_is_left_is_slurms(commands, text, minutes):
    """The runs of a group share one job."""
    commands("squeue", text)
    assert minutes_left() == minutes


def test_nothing_is_said_outside_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    requeue(pytest.fail)


def test_a_stretch_leaves_time_for_the_checkpoint():
    assert stretch_minutes(240) == 235
    assert stretch_minutes(6) == 3


def test_job_on_a_tpu_asks_the_plugin_to_launch_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_AGAIN_FILE", str(tmp_path / "again"))
    _resume_later(0, 30.0, 30.0)
    assert not (tmp_path / "again").exists()
    _resume_later(5, 30.0, 30.0)
    assert (tmp_path / "again").exists()


@pytest.mark.parametrize(("first", "pauses"), [(1, [1.25, 1.5625]), (40, [50, 62.5])])
def test_pauses_between_looks_grow_by_a_share(monkeypatch, first, pauses):
    """A short job whose end the user asks to see soon is not looked at ten seconds later."""

    async def running(self, jobs):
        return dict.fromkeys(jobs, "RUNNING")

    async def look():
        return [
            info async for info in executor.check_active_jobs([SimpleNamespace(external_jobid="7", aux={})])
        ]

    monkeypatch.setattr(Executor, "_states", running)
    executor = object.__new__(Executor)
    executor.workflow = SimpleNamespace(
        executor_settings=SimpleNamespace(init_seconds_before_status_checks=first)
    )
    executor.next_seconds_between_status_checks, executor._away_since = first, None
    for pause in pauses:
        assert len(asyncio.run(look())) == 1
        assert executor.next_seconds_between_status_checks == pause
    for _ in range(30):
        asyncio.run(look())
    assert executor.next_seconds_between_status_checks == 120
