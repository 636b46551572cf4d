"""Faults of the pod and the controller: every study finishes, and no job runs twice."""

import asyncio
import re
import signal
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.study import Study, keys_of, until
from snakemake_executor_plugin_tpu.jobs import JobRun
from snakemake_executor_plugin_tpu.launch import LaunchResult

# In their first launch these jobs wait at step 6 of 12 for a fault.
LONG = {"steps": 12, "options": "--hold 6"}


def steps_of(call, job="a", rank=0):
    return [int(step) for step in re.findall(rf"job={job} {rank}\] step (\d+)", call.output)]


def test_preempted_pod_is_created_again_and_the_job_resumes(study):
    one = study({"a": {**LONG, "hosts": 4}, "b": LONG})
    call = one.start()
    call.wait_for(r"job=[ab] 0\] step 6$")
    keys = [host.host_key for host in one.pod.hosts]
    one.pod.preempt()
    one.release("a")
    one.release("b")
    assert call.wait() == 0, call.output
    assert [host.host_key for host in one.pod.hosts] != keys
    assert "Trying to restart job" not in call.output
    (resumed,) = [launches for job in "ab" if "2-0" in (launches := one.launches(job))]
    assert resumed["1-0"]["from"] == 0
    assert resumed["2-0"]["from"] == 6
    assert len(one.table) == 2
    assert one.pod.jobs() == {}
    assert "the pod is gone: node PREEMPTED, queued resource SUSPENDED" in call.output
    assert call.lines[-2].startswith("TPU pod pod (v4-32, READY) still exists and costs money (16 chips")


def test_preemption_with_notice_is_not_a_failure(study):
    one = study({"a": LONG})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    one.pod.preempt(notice=1.0)
    assert call.wait() == 0, call.output
    assert "TPU job count" not in call.output
    assert one.launches("a")["2-0"]["from"] == 6, call.output


def test_rebooted_host_gets_its_job_back(study):
    one = study({"a": {**LONG, "hosts": 4}}, **{"tpu-recovery": 60})
    call = one.start()
    for rank in (0, 2):
        call.wait_for(rf"job=a {rank}\] step 6$")
    keys = keys_of(one.pod)
    one.pod.hosts[2].kill()
    call.wait_for("looking for it")
    one.pod.hosts[2].boot()
    assert call.wait() == 0, call.output
    assert one.launches("a")["2-0"]["from"] == 6
    assert keys_of(one.pod) == keys
    assert one.pod.jobs() == {}


def test_frozen_then_killed_controller_stops_nothing(study):
    one = study({"a": {"steps": 70, "options": "--hold 60", "hosts": 4}})
    call = one.start()
    call.wait_for(r"job=a 0\] step 3$")
    call.signal(signal.SIGSTOP)
    # The controller is frozen for longer than several polls.
    until(lambda: one.step("a") == 60)
    call.signal(signal.SIGKILL)
    call.wait()
    one.run("--unlock")
    again = one.start()
    again.wait_for("re-attaching")
    one.release("a")
    assert again.wait() == 0, again.output
    assert set(one.launches("a")) == {"1-0", "1-1", "1-2", "1-3"}
    assert one.table == ["a counted to 70 with seed 7 on 4"]
    # Each rank's log continues where the first controller stopped.
    (log,) = (one.folder / ".snakemake" / "tpu" / "logs").glob("*/launch-1/rank3.log")
    counted = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("step")]
    assert counted == list(range(1, 71))


def test_second_controller_is_kept_off_the_pod(study):
    one, other = study({"a": {**LONG, "hosts": 4}}), study({"b": {}})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    output = other.run(code=1)
    assert "The pod is in use by the Snakemake of " in output
    assert f"(process {call.process.pid} in {one.folder}, since " in output
    # After a dropped connection the first controller gets the pod back before anybody else.
    one.pod.hosts[0].drop_connections()
    one.release("a")
    assert call.wait() == 0, call.output
    assert set(one.launches("a")) == {"1-0", "1-1", "1-2", "1-3"}
    other.run()


@pytest.mark.full
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_full_disk_is_cleaned_and_the_pod_kept(tmp_path):
    one_host = {"tpu-accelerator-type": "v4-8", "resources": {"tpu_hosts": 1}}
    with EmulatedPod(tmp_path / "pod", "v4-8", disk_mb=160) as pod:
        one = Study(tmp_path / "study", pod, {"a": LONG}, **one_host)
        call = one.start()
        try:
            call.wait_for(r"job=a 0\] step 6$")
            keys = keys_of(pod)
            old = ".snakemake-tpu/tasks/ended-long-ago"
            pod.hosts[0].enter("mkdir", f"{pod.hosts[0].home}/{old}")
            pod.hosts[0].fill_disk(f"{old}/copy")
            one.release("a")
            assert call.wait() == 0, call.output
        finally:
            call.end()
        assert "no space left on its disk" in call.output or "MB of disk left" in call.output
        assert "Trying to restart job" not in call.output
        assert keys_of(pod) == keys
        assert pod.jobs() == {}
    assert one.table


def test_an_unwritable_jobs_csv_does_not_end_the_workflow(study):
    one = study({"a": {}})
    (one.folder / ".snakemake" / "tpu" / "jobs.csv").mkdir(parents=True)
    assert "jobs.csv cannot be written" in one.run()
    assert one.table


def test_job_beyond_its_runtime_counts_as_lost_not_as_failed():
    run = SimpleNamespace(request=SimpleNamespace(runtime=5400.0))
    result = LaunchResult(code=143, reason="runtime", rank=0, host="w0", tail=[])
    why = asyncio.run(JobRun._why_lost(run, None, result))
    assert why == "it was stopped after 90 minutes (resources: runtime)"


def test_dropped_connections_lose_no_byte(study):
    one = study({"a": {**LONG, "hosts": 4}})
    call = one.start()
    call.wait_for(r"job=a 3\] step 6$")
    assert sum(host.drop_connections() for host in one.pod.hosts) >= 4
    one.release("a")
    assert call.wait() == 0, call.output
    assert set(one.launches("a")) == {"1-0", "1-1", "1-2", "1-3"}
    for rank in range(4):
        steps = steps_of(call, rank=rank)
        assert steps == list(range(1, 13))


def test_relaunches_without_a_newer_checkpoint_are_capped(study):
    one = study({"a": {"steps": 10000, "options": "--mute"}}, **{"tpu-relaunches-without-progress": 1})
    call = one.start()
    for launch in (1, 2):
        call.wait_for(rf"launch {launch}, rank 0")
        one.pod.preempt()
    assert call.wait() == 1
    assert "relaunched 1 time in a row without a newer checkpoint" in call.output
    assert "preemptions alone do not look like this" in call.output


def test_nothing_is_created_without_permission(study):
    one = study({"a": {}}, **{"tpu-create": False})
    one.pod.preempt()
    output = one.run(code=1)
    assert "the profile does not allow creating it: set tpu-create: true" in output
    assert not any(host.is_up for host in one.pod.hosts)


def test_api_refusal_is_one_sentence_with_a_command(study):
    one = study({"a": {}})
    one.pod.api.fail(1, "PERMISSION_DENIED", "no tpu.nodes.get", method="GetNode")
    output = one.run(code=1)
    assert "--role=roles/tpu.admin" in output
    assert "Traceback" not in output


def test_outages_of_api_and_bucket_are_survived(study):
    one = study({"a": {}})
    one.pod.preempt()
    one.pod.api.fail(3)
    one.pod.gcs.proxy.failures = 2
    one.run()
    assert one.table


def test_job_that_cannot_be_followed_is_stopped(study):
    one = study({"a": LONG})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    (requests,) = [
        path for host in one.pod.hosts for path in host.home.glob(".snakemake-tpu/tasks/*/requests")
    ]
    (requests / "broken.json").write_text("{")
    assert call.wait() == 1
    assert "JSONDecodeError" in call.output
    assert one.pod.jobs() == {}
