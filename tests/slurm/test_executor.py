"""When a job asks Slurm to start it again, with stand-ins for Slurm's commands (tests/slurm has the real ones)."""

import asyncio
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm_jobstep as jobstep
from snakemake_interface_common.exceptions import ApiError

from tests.shell import ROOT, python, run
from trm.cli import main
from trm.cli.train import resume_later
from trm.slurm import commands, jobs, requeue
from trm.slurm import executor as module
from trm.slurm.commands import SlurmJob
from trm.slurm.executor import Executor
from trm.slurm.requeue import job_id, minutes_left, stretch_minutes


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that makes a command of a script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def make(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return make


@pytest.fixture
def answers(tmp_path, script):
    """Return a function that makes a command print a text."""
    return lambda name, text: script(name, f"echo '{text}'\necho {name} $* >> {tmp_path}/calls")


def test_options_of_the_user_hide_no_jobs(script, monkeypatch):
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SACCT_FORMAT", "nothing")
    monkeypatch.setenv("SLURM_CONF", "kept")
    script("squeue", "env")
    seen = commands.ask("squeue")[1]
    assert "SLURM_CONF=kept" in seen
    assert not any(name in seen for name in ("SQUEUE_", "SACCT_"))


def test_a_controller_in_a_job_forgets_that_job_only(executor, monkeypatch):
    """`SLURM_CLUSTERS` is the user's: without it, jobs would go elsewhere."""
    for name in ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_MPI_TYPE", "SLURM_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setattr(commands, "ask", lambda *_: (True, ""))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    Executor(executor.workflow, None)
    assert os.environ["SLURM_CPUS_PER_TASK"] == "theirs"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    Executor(executor.workflow, None)
    assert sorted(name for name in os.environ if name.startswith("SLURM_")) == [
        *("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_MPI_TYPE"),
    ]


def test_a_cancelled_job_stays_cancelled(answers, tmp_path):
    answers("squeue", "COMPLETING")
    answers("scontrol", "")
    said = []
    requeue.requeue(said.append)
    assert said == ["Slurm ends job 7 already (COMPLETING) and decides whether it starts again"]
    assert "scontrol" not in (tmp_path / "calls").read_text()


def test_a_job_that_may_not_be_requeued_asks_the_controller_for_another(answers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers("squeue", "RUNNING")
    answers("scontrol", "Requested operation is presently disabled")
    said = []
    requeue.requeue(said.append)
    assert "(Requested operation is presently disabled): a new job resumes the run" in said[-1]
    assert (requeue.AGAIN / "7").exists()


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


class Job:
    """What the executor reads of a job of rule `train`."""

    name, threads, log, restart_times, attempt = "train", 1, (), 1, 1
    rule = SimpleNamespace(name="train")

    def __init__(self, run="a", **resources):
        self.jobid, self.wildcards, self.resources, self.output = run, (run,), Resources(resources), ("none",)

    def is_group(self):
        return False


class Resources(dict):
    """Snakemake's: a dictionary whose values are attributes, too."""

    __setattr__ = dict.__setitem__

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Submitting(Executor):
    """An executor whose jobs' ends are kept; `states` are Slurm's."""

    def __init__(self, folder):
        settings = {
            **{"init_seconds_before_status_checks": 0, "keep_successful_logs": True, "requeue": True},
            **dict.fromkeys(("qos", "reservation", "pass_command_as_script", "array_jobs")),
        }
        self.workflow = SimpleNamespace(
            executor_settings=SimpleNamespace(**settings),
            workdir_init=str(folder),
            scheduler=SimpleNamespace(_user_kill=None),
        )
        Executor.__init__(self, self.workflow, None)
        self.study, self.slurm_logdir = "small", folder
        self._job_submission_executor = SimpleNamespace(submit=lambda function, job: function(job))
        self.lock, self.wait, self.next_seconds_between_status_checks = threading.Lock(), True, 1e9
        say = lambda text, **rest: print(text)  # noqa: E731
        self.logger = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error"), say))
        self._failed_nodes, self._main_event_loop, self._partitions = set(), None, None
        self.submitted, self.failed, self.succeeded, self.states = {}, [], [], {}

    def report_job_submission(self, info):
        self.submitted[info.job.jobid] = info.external_jobid

    def report_job_error(self, info, msg, **rest):
        self.failed.append((info.job.jobid, msg))

    def report_job_success(self, info):
        self.succeeded.append(info.job.jobid)

    async def _states(self, jobs):
        return {job: self.states[job.number] for job in jobs if job.number in self.states}

    def look(self, *infos):
        """Jobs that go on."""

        async def look():
            return [info async for info in self.check_active_jobs(infos)]

        return asyncio.run(look())


@pytest.fixture
def executor(tmp_path, monkeypatch):
    monkeypatch.setattr(module.plugin.Executor, "__init__", lambda *_: None)
    monkeypatch.setattr(module.plugin.Executor, "format_job_exec", lambda _, job: f"make {job.jobid}")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as answering:
        answering.setattr(commands, "ask", lambda *_: (True, ""))
        return Submitting(tmp_path)


def submitted(number="7"):
    aux = {"slurm": SlurmJob("", number, "small.train.a"), "slurm_logfile": Path("log"), "since": time.time()}
    return SimpleNamespace(job=Job(), external_jobid=number, aux=aux)


def test_nothing_starts_without_slurm(executor, script):
    script(
        "squeue",
        "echo 'squeue: error: DNS SRV lookup failed' >&2; echo 'squeue: fatal: No source' >&2; exit 1",
    )
    with pytest.raises(
        ApiError, match="^Slurm does not answer: squeue: fatal: No source: load its commands first"
    ):
        Executor(executor.workflow, None)


def test_arrays_are_refused(executor, monkeypatch):
    monkeypatch.setattr(commands, "ask", lambda *_: (True, ""))
    executor.workflow.executor_settings.array_jobs = "train"
    with pytest.raises(ApiError, match="--slurm-array-jobs: .* use --groups"):
        Executor(executor.workflow, None)


def test_the_plugin_starts_though_arrays_are_switched_off(executor, answers):
    answers("scontrol", "MaxArraySize            = 1")
    assert module.plugin.get_max_array_size() > 1


def test_an_error_in_a_submissions_thread_ends_the_workflow(executor, answers):
    """Else the workflow would wait for this job for ever."""
    answers("squeue", "")
    answers("scontrol", "")
    errors = []
    executor.workflow.scheduler.executor_error_callback = errors.append
    executor.run_job(Job(slurm_extra="--output=mine"))
    assert ["not allowed in the 'slurm_extra'" in str(error) for error in errors] == [True]


@pytest.mark.parametrize(
    "reason",
    [
        *("QOSMaxSubmitJobPerUserLimit", "AssocGrpSubmitJobsLimit", "Connection timed out"),
        "Required partition not available (inactive or drain)",
    ],
)
def test_limits_outages_and_maintenance_use_up_no_retry(executor, script, reason):
    script("squeue", "")
    script("sbatch", f"[ -e full ] && echo 5 && exit; touch full; echo 'sbatch: error: {reason}' >&2; exit 1")
    executor.run_job(Job())
    assert (executor.submitted, executor.failed) == ({"a": "5"}, [])


def test_a_refusal_is_one_line_in_slurms_words_and_final(executor, script):
    script("squeue", "")
    lines = ("Old project", "Batch job submission failed: Invalid account")
    script("sbatch", "".join(f"echo 'sbatch: error: {line}' >&2\n" for line in lines) + "exit 1")
    job = Job()
    executor.run_job(job)
    assert executor.failed == [("a", "Slurm refuses the job: Old project; Invalid account. ")]
    assert job.attempt > job.restart_times  # Snakemake's question


def test_a_job_over_several_nodes_asks_for_equal_shares(executor, answers, tmp_path):
    """Of `--gpus=4 --nodes=2` Slurm may make 3 + 1, on which srun starts no step."""
    answers("squeue", "")
    answers("sbatch", "5")
    executor.run_job(Job(nodes=2, gpu=4, mpi="srun", tasks=2, tasks_per_gpu=0))
    assert " --gpus=4 --ntasks-per-node=1 --gpus-per-node=2 " in (tmp_path / "calls").read_text()
    assert jobs.spread(Job(nodes=2, gpu=4, gpu_model="a100")) == " --ntasks-per-node=1 --gpus-per-node=a100:2"
    assert jobs.spread(Job(nodes=1, gpu=4)) == ""


def test_a_retry_is_no_job_of_an_earlier_controller(executor, answers, tmp_path):
    """The queue was read while the first attempt ran."""
    answers("squeue", f"7|FAILED|None|{tmp_path}|small.train.a")
    executor._earlier = {"": {"train.a": SlurmJob("", "7", "small.train.a")}}
    assert not executor._adopt(Job())
    assert executor.submitted == {}


@pytest.mark.parametrize(
    ("state", "found"), [("SIGNALING", True), ("STAGE_OUT", True), ("TIMEOUT", False), ("PREEMPTED", False)]
)
def test_a_job_that_slurm_still_has_is_taken_over(executor, answers, tmp_path, state, found):
    answers("squeue", f"7|{state}|None|{tmp_path}|small.train.a")
    assert executor._adopt(Job()) is found
    assert executor.submitted == ({"a": "7"} if found else {})


def test_jobs_of_hidden_partitions_and_other_clusters_are_found(executor, script, tmp_path, monkeypatch):
    """squeue lists a hidden partition only with --all, and another cluster only if it is named."""
    row = f"7|RUNNING|None|{tmp_path}|small.train.a"
    script("squeue", f"case \"$*\" in *--all*--clusters=beta*) echo 'CLUSTER: beta'; echo '{row}';; esac")
    assert not executor._adopt(Job())
    monkeypatch.setenv("SBATCH_CLUSTERS", "beta")
    assert executor._adopt(Job())
    assert executor._adopt(Job("a", slurm_cluster="alpha")) is False
    assert [*executor._live] == [SlurmJob("beta", "7", "small.train.a")]


def test_a_job_is_watched_on_the_cluster_that_took_it(executor, script):
    script("squeue", 'echo "$*" | grep -q clusters=beta && echo 7')
    script("sbatch", "echo Welcome to 2026; echo '7;beta'")
    executor._submit(Job())
    assert [*executor._live] == [SlurmJob("beta", "7", "small.train.a")]


def test_a_job_whose_submission_slurm_took_late_is_not_submitted_again(executor, script, tmp_path):
    """A slurmctld that hung answers squeue before it has dealt with the call of sbatch, which has given up."""
    job = f"7|PENDING|None|{tmp_path}|small.train.a"
    script("squeue", f"echo >>asked; [ $(wc -l <asked) -lt 3 ] || echo '{job}'")
    script(
        "sbatch", "echo >>tried; echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"
    )
    executor.run_job(Job())
    assert executor.submitted == {"a": "7"}
    assert Path("tried").read_text() == "\n"


@pytest.mark.parametrize(
    ("state", "away", "output", "log", "end"),
    [
        ("", 1, None, None, "goes on"),
        ("", 1, 0, None, "goes on"),
        ("", 11, None, None, "goes on"),
        ("", 11, 0, None, "done"),
        ("", 0, 0, None, "done"),
        ("", 0, 60, 20, "Slurm does not know job 7, and its log says nothing for 10 minutes. "),
        ("", 0, None, 5, "goes on"),
        ("RUNNING", 0, 0, 20, "goes on"),
        ("COMPLETED", 0, None, None, "done"),
        ("TIMEOUT", 0, None, None, "Slurm job 7 ended as TIMEOUT: give it more time (max_runtime). "),
        ("CANCELLED", 0, None, None, "Slurm job 7 was cancelled. Repeat the command to resume it. "),
    ],
)
def test_what_becomes_of_a_job(executor, answers, tmp_path, state, away, output, log, end):
    """By what Slurm says, by how long it has been silent, and by the ages of output and log in minutes. The job began
    half an hour ago, and squeue has not had it for twenty minutes."""
    answers("scancel", "")
    now, info = time.time(), submitted()
    info.job.output, info.job.log = (tmp_path / "training.json",), (tmp_path / "log",)
    for path, age in ((info.job.output[0], output), (info.job.log[0], log)):
        if age is not None:
            path.touch()
            os.utime(path, (now - 60 * age,) * 2)
    info.aux |= {"since": now - 1800, "unknown": now - 1200}
    executor.states = {"7": state} if state else {}
    executor._away = {"": now - 60 * away} if away else {}
    goes_on = executor.look(info) == [info]
    assert (goes_on, executor.succeeded, executor.failed) == (
        end == "goes on",
        ["a"] if end == "done" else [],
        [] if end in ("goes on", "done") else [("a", end)],
    )
    retried = info.job.restart_times > info.job.attempt - 1  # Snakemake's question
    assert retried is (state != "CANCELLED")
    # a job that counts as lost may live: it must not run beside the next one
    cancelled = (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
    assert cancelled == ("scancel --name=small.train.a 7\n" if "does not know" in end else "")


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ("RUNNING|None", "RUNNING"),
        ("PENDING|Priority", "PENDING"),
        ("CANCELLED|None", None),
        ("CANCELLED by 0|None", "CANCELLED"),
        ("COMPLETED|None", "COMPLETED"),
    ],
)
def test_records_are_asked_about_jobs_that_have_left_the_queue(executor, answers, tmp_path, record, state):
    """Records of jobs that a dead slurmctld had lost say that nobody cancelled them. The queue's 7 is a stranger's."""
    answers("squeue", f"8|RUNNING|None|{tmp_path}|small.train.b\n7|FAILED|None|/home|foreign")
    answers("sacct", f"7|{record}|{tmp_path}|small.train.a\n7|FAILED|None|/home|foreign")
    executor.status_rate_limiter = asyncio.Lock()
    asked = [SlurmJob("", "7", "small.train.a"), SlurmJob("", "8", "small.train.b")]
    found = asyncio.run(Executor._states(executor, asked))
    assert [found.get(job) for job in asked] == [state, "RUNNING"]
    assert "--jobs 7\n" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("state", "line", "more"),
    [
        ("FAILED", "srun: error: Invalid MPI type", ": srun: error: Invalid MPI type"),
        ("FAILED", "srun: error: n0: task 0: Exited with exit code 1", ""),
        ("OUT_OF_MEMORY", "srun: error: n0: task 0: Out Of Memory", ": give it more memory (mem_mb)"),
    ],
)
def test_a_failure_names_what_srun_says(executor, state, line, more):
    Path("log").write_text(f"{line}\n")
    executor.states = {"7": state}
    executor.look(submitted())
    assert executor.failed == [("a", f"Slurm job 7 ended as {state}{more}. ")]


def test_a_reason_that_does_not_pass_by_itself_is_told_once(executor, answers, tmp_path, capsys):
    answers(
        "squeue",
        f"7|PENDING|PartitionTimeLimit|{tmp_path}|small.train.a\n8|PENDING|Priority|{tmp_path}|small.b",
    )
    executor.status_rate_limiter = asyncio.Lock()
    asked = [SlurmJob("", "7", "small.train.a"), SlurmJob("", "8", "small.b")]
    for _ in range(2):
        asyncio.run(Executor._states(executor, asked))
    told = "Slurm does not start job 7: PartitionTimeLimit (`scontrol show job 7` says more)\n"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("later", ["PREEMPTED", ""])
def test_a_preempted_job_that_slurm_does_not_take_back_fails_with_its_cause(executor, later):
    """Also after Slurm has forgotten it."""
    executor.states = {"7": "PREEMPTED"}
    info = submitted()
    assert executor.look(info) == [info]
    executor.states = {"7": later} if later else {}
    info.aux["unknown"] -= 60 * executor.lost_minutes
    assert executor.look(info) == []
    assert executor.failed == [("a", "Slurm job 7 ended as PREEMPTED and was not put back into the queue. ")]


def test_a_job_to_which_slurm_gave_no_step_is_submitted_again_once(executor, answers, capsys):
    answers("squeue", "")
    answers("sbatch", "8")
    Path("log").write_text("srun: error: Unable to create step for job 7: Invalid generic resource (gres)\n")
    executor.states, info = {"7": "FAILED"}, submitted()
    assert executor.look(info) == []
    assert (executor.submitted, executor.failed, info.job.attempt) == ({"a": "8"}, [], 1)
    assert (
        "(Unable to create step for job 7: Invalid generic resource (gres)): it is" in capsys.readouterr().out
    )
    executor.look(info)
    ((_, sentence),) = executor.failed
    assert "ended as FAILED: srun: error: Unable to create step" in sentence


def test_a_job_of_an_earlier_controller_that_failed_has_failed(executor):
    executor.states, info = {"7": "FAILED"}, submitted()
    info.aux["since"] = 0.0  # unknown
    assert executor.look(info) == []
    assert executor.failed == [("a", "Slurm job 7 ended as FAILED. ")]


@pytest.mark.parametrize("state", ["FAILED", ""])
def test_a_run_that_stopped_before_its_limit_and_may_not_be_requeued_is_no_failure(executor, answers, state):
    """A site without requeueing: each stretch is another job, as often as it takes."""
    answers("squeue", "")
    answers("sbatch", "8")
    executor.states, info = {"7": state} if state else {}, submitted()
    for _ in range(3):
        requeue.AGAIN.mkdir(parents=True, exist_ok=True)
        (requeue.AGAIN / "7").touch()
        executor.look(info)
    assert (executor.submitted, executor.failed, info.job.attempt) == ({"a": "8"}, [], 1)
    assert not (requeue.AGAIN / "7").exists()


def test_all_jobs_are_cancelled_also_while_they_are_looked_at(executor, answers, script, tmp_path):
    """Snakemake's list of jobs is empty meanwhile. 9 is a stranger's by now: slurmctld had lost its state."""
    rows = [
        f"{number}|RUNNING|None|{tmp_path}|{name}"
        for number, name in ((7, "small.a"), (8, "small.b"), (9, "x"))
    ]
    script("squeue", f"echo '{chr(10).join(rows)}'")
    answers("scancel", "")
    executor._watch(Job(), SlurmJob("", "7", "small.a"), 0.0)
    executor._watch(Job(), SlurmJob("", "9", "small.c"), 0.0)
    executor.active_jobs, executor.shutdown = [], lambda: None
    executor.cancel()
    assert (tmp_path / "calls").read_text() == "scancel 7\n"
    executor._watch(Job(), SlurmJob("", "8", "small.b"), 0.0)  # sbatch returned only now
    assert (tmp_path / "calls").read_text() == "scancel 7\nscancel 8\n"
    asyncio.run(executor.sleep())  # ends at once


@pytest.mark.parametrize(("first", "pauses"), [(1, [1.25, 1.5625]), (40, [50, 62.5])])
def test_pauses_between_looks_grow_by_a_share(executor, first, pauses):
    """A short job whose end the user asks to see soon is not looked at ten seconds later."""
    info, executor.states = submitted(), {"7": "PENDING"}
    executor.workflow.executor_settings.init_seconds_before_status_checks = first
    executor.next_seconds_between_status_checks = first
    for pause in pauses:
        assert executor.look(info) == [info]
        assert executor.next_seconds_between_status_checks == pause
    for _ in range(30):
        executor.look(info)
    assert executor.next_seconds_between_status_checks == 120
    executor.states = {"7": "RUNNING"}
    executor.look(info)
    assert executor.next_seconds_between_status_checks == first


def test_the_patches_for_the_plugin_mend_its_faults(tmp_path):
    upstream = ROOT / "docs/upstream"

    def faults(path: Path | str) -> int:
        done = python(upstream / "slurm.py", env={"PYTHONPATH": str(path)}, check=True)
        return len(done.stdout.splitlines())

    patches = sorted(upstream.glob("slurm-*.patch"))
    assert faults("") == len(patches) == 9
    for source in map(Path, (module.plugin.__file__, jobstep.__file__)):
        shutil.copytree(source.parent, tmp_path / source.parent.name)
    for path in patches:
        run("patch", "-p1", "-i", path, cwd=tmp_path, check=True)
    assert faults(tmp_path) == 0
