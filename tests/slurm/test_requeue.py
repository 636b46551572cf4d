"""When a job asks to be started again, with stand-ins for Slurm's commands; test_interruptions.py has the real ones."""

import os
import signal

import pytest

from trm.cli import main
from trm.cli.train import resume_later
from trm.slurm import requeue
from trm.slurm.requeue import job_id, minutes_left, stretch_minutes


@pytest.mark.parametrize(
    ("state", "refusal", "said", "another"),
    [
        ("COMPLETING", "", "Slurm ends job 7 already (COMPLETING) and decides whether it starts again", False),
        ("SIGNALING", "", "requeueing Slurm job 7: its next start resumes the run", False),  # a signal is on its way
        ("RUNNING", "is disabled", "Slurm does not requeue job 7 (is disabled): a new job resumes the run", True),
    ],
)  # fmt: skip
def test_a_job_goes_back_unless_slurm_ends_it_or_asks_the_controller_for_another(
    answers, tmp_path, monkeypatch, state, refusal, said, another
):
    """A cancelled job stays cancelled."""
    monkeypatch.chdir(tmp_path)
    answers("squeue", state)
    answers("scontrol", refusal)
    told = []
    requeue.requeue(told.append)
    assert told[-1] == said
    assert ("scontrol" in (tmp_path / "calls").read_text()) is (state != "COMPLETING")
    assert (requeue.AGAIN / "7").exists() is another


def test_a_running_job_goes_back_once_slurm_answers_again(script, tmp_path, monkeypatch):
    """slurmctld is away when the run stops before its time limit."""
    monkeypatch.setattr(requeue, "PAUSE", 0)
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    script(
        "squeue",
        f"cd {tmp_path}\n[ -e asked ] && echo RUNNING && exit\ntouch asked\necho '{away}' >&2\nexit 1",
    )
    script("scontrol", f"echo $* > {tmp_path}/calls")
    said = []

    def say(sentence):
        assert not (tmp_path / "calls").exists(), "Slurm may have ended this process by now"
        said.append(sentence)

    requeue.requeue(say)
    assert said == ["requeueing Slurm job 7: its next start resumes the run"]
    assert (tmp_path / "calls").read_text() == "requeue 7\n"


def test_a_job_that_made_no_step_does_not_go_back(answers, capsys):
    resume_later(0, 15.0, 15.0)
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
    sentence = (
        "if it warned of the time limit: no step was finished in a job of 1 minutes: give jobs more time"
    )
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
def test_the_time_that_is_left_is_slurms(answers, text, minutes):
    """The runs of a group share one job."""
    answers("squeue", text)
    assert minutes_left() == minutes


def test_nothing_is_said_outside_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    requeue.requeue(pytest.fail)


def test_a_stretch_leaves_time_for_the_checkpoint():
    assert stretch_minutes(240) == 235
    assert stretch_minutes(6) == 3


def test_job_on_a_tpu_asks_the_plugin_to_launch_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_AGAIN_FILE", str(tmp_path / "again"))
    resume_later(0, 30.0, 30.0)
    assert not (tmp_path / "again").exists()
    resume_later(5, 30.0, 30.0)
    assert (tmp_path / "again").exists()
