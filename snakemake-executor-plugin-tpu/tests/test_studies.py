"""Studies by a real Snakemake on the emulated pod: whatever happens, each finishes and no job runs twice at a time."""

import re
import signal

import pytest
from study import FINISHED, ONE_HOST, Study, until

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not

# In their first launch these jobs wait at step 6 of 12 for a fault.
LONG = {"steps": 12, "options": "--hold 6"}
WHOLE = {**LONG, "hosts": 4}


def at_six(study, *jobs, **environment):
    """Start a study and wait until these jobs are at step 6."""
    call = study.start(**environment)
    for job in jobs:
        call.wait_for(rf"job={job} 0\] step 6$")
    return call


def finishes(study, call, *jobs):
    """Release jobs, wait for the end of the study, and check that no retry was used."""
    for job in jobs:
        study.release(job)
    assert call.wait() == 0, call.output
    assert "Trying to restart job" not in call.output
    assert len(study.table) == len(study.jobs)
    assert not study.duplicates
    until(lambda: not study.pod.jobs())


def test_a_preempted_pod_is_created_again_and_its_jobs_resume(study):
    one = study({"a": WHOLE, "b": LONG}, **{"tpu-prices": "v4=3.22"})
    call = one.start()
    call.wait_for(r"job=[ab] 0\] step 6$")
    one.pod.preempt()
    finishes(one, call, "a", "b")
    (resumed,) = [launches for job in "ab" if "2-0" in (launches := one.launches(job))]
    assert [resumed[f"{launch}-0"]["from"] for launch in (1, 2)] == [0, 6]
    assert one.pod.api.created_nodes == 2
    assert "the pod is gone: node PREEMPTED, queued resource SUSPENDED" in call.output
    assert "TPU pod pod (v4-32, READY) still exists and costs 51.52 USD an hour" in call.output


def test_ended_jobs_of_a_killed_snakemake_are_found(study):
    one = study({"a": WHOLE})
    call = at_six(one, "a")
    call.signal(signal.SIGKILL)
    call.wait()
    one.release("a")
    until(lambda: one.steps()["a"] == FINISHED and not one.pod.jobs())
    again = one.start("--nolock")
    finishes(one, again)
    assert set(one.launches("a")) == {"1-0", "1-1", "1-2", "1-3"}
    # each rank's log is complete
    (log,) = (one.folder / ".snakemake" / "tpu" / "logs").glob("*/launch-1/rank3.log")
    counted = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("step")]
    assert counted == list(range(1, 13))


def test_an_ended_job_of_a_killed_snakemake_whose_output_is_gone_runs_again(study):
    one = study({"a": LONG}, **ONE_HOST)
    call = at_six(one, "a")
    call.signal(signal.SIGKILL)
    call.wait()
    one.release("a")
    until(lambda: one.steps()["a"] == FINISHED and not one.pod.jobs())
    one.pod.bucket.blob(f"{one.prefix}/counts/a.txt").delete()
    again = one.start("--nolock")
    finishes(one, again)
    assert set(one.launches("a")) == {"1-0", "2-0"}
    assert "counts/a.txt is gone" in again.output


def test_a_pod_in_use_is_refused_to_others(study):
    one = study({"a": LONG}, **ONE_HOST)
    call = at_six(one, "a")
    code, output = one.command("down")
    assert (code, "`down --force` deletes the pod anyway" in output) == (1, True)
    assert re.search(r"w0 .*count-[0-9a-f]{12} \(launch 1, progress", one.command("status")[1])
    call.signal(signal.SIGKILL)  # a job without a controller keeps the pod as well
    call.wait()
    code, output = one.command("down")
    assert (code, bool(re.search("count-[0-9a-f]{12}.*progress 6", output))) == (1, True), output
    code, output = one.command("down", "--force")
    assert code == 0, output
    assert one.pod.api.nodes == {} == one.pod.api.queued


def test_a_stopped_job_is_not_started_again_by_this_call(study):
    one = study({"a": LONG}, retries=2, **ONE_HOST)
    call = at_six(one, "a")
    slot = re.search(r"(count-[0-9a-f]{12})", one.command("status")[1])[1]
    assert one.command("stop", slot)[0] == 0
    assert call.wait() == 1
    assert set(one.launches("a")) == {"1-0"}
    one.run()  # the next call starts it again
    assert one.launches("a")["2-0"]["from"] == 6


def test_a_call_that_is_ended_stops_its_jobs_and_says_what_costs(study):
    """By SIGTERM; test_interrupts.py has Ctrl-C."""
    one = study({"a": WHOLE})
    call = at_six(one, "a")
    call.signal(signal.SIGTERM)
    assert call.wait() != 0
    until(lambda: not one.pod.jobs())
    assert "TPU pod pod (v4-32, READY) still exists and costs money" in call.output
    finishes(one, one.start("--nolock"))
    assert one.launches("a")["2-0"]["from"] == 6


@pytest.mark.full
@pytest.mark.skipif(bool(why_not(disk=True)), reason=why_not(disk=True) or "")
def test_a_full_disk_is_cleaned_and_the_pod_kept(tmp_path):
    with EmulatedPod(tmp_path / "pod", "v4-8", disk_mb=160) as pod:
        one = Study(tmp_path / "study", pod, {"a": LONG}, **ONE_HOST)
        try:
            call = at_six(one, "a")
            pod.hosts[0].fill_disk(".snakemake-tpu/tasks/ended-long-ago/copy")
            finishes(one, call, "a")
        finally:
            one.end()
        assert pod.api.created_nodes == 1
