"""How jobs are submitted and found again, with stand-ins for Slurm's commands; test_jobs.py has the real ones."""

import os

import pytest
from snakemake_interface_common.exceptions import ApiError

from tests.shell import python
from tests.slurm.standins import Job
from trm.slurm import commands, jobs
from trm.slurm import executor as module
from trm.slurm.commands import SlurmJob
from trm.slurm.executor import Executor


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
        *("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_MPI_TYPE")
    ]


def test_nothing_starts_without_slurm(executor, script):
    script(
        "squeue",
        "echo 'squeue: error: DNS SRV lookup failed' >&2; echo 'squeue: fatal: No source' >&2; exit 1",
    )
    said = r"^Slurm does not answer \(squeue: fatal: No source\): load its commands \(module load slurm\), or wait"
    with pytest.raises(ApiError, match=said):
        Executor(executor.workflow, None)


def test_arrays_are_refused(executor, monkeypatch):
    monkeypatch.setattr(commands, "ask", lambda *_: (True, ""))
    executor.workflow.executor_settings.array_jobs = "train"
    with pytest.raises(ApiError, match="^--slurm-array-jobs is refused, .*: use --groups"):
        Executor(executor.workflow, None)


def test_the_plugin_starts_though_arrays_are_switched_off(executor, answers):
    answers("scontrol", "MaxArraySize            = 1")
    assert module.plugin.get_max_array_size() > 1


@pytest.mark.usefixtures("executor")
def test_jobs_find_which_on_nodes_that_lack_it():
    """The plugin calls it when it is imported, before any file of the project is read."""
    last = os.environ["PATH"].rpartition(":")[2]
    python("-c", "import snakemake_executor_plugin_slurm", env={"PATH": last}, check=True)


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
    said = "Slurm refuses the job (Old project; Invalid account): change what it asks for (docs/cluster.md). "
    assert executor.failed == [("a", said)]
    assert job.attempt > job.restart_times  # Snakemake's question


def test_a_job_over_several_nodes_asks_for_equal_shares():
    """Of `--gpus=4 --nodes=2` Slurm may make 3 + 1, on which srun starts no step."""
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
