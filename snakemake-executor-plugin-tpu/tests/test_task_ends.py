"""How a task ends on a host: by itself, stopped, out of time, stalled or lost; and what is known of it then."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from local_agent import PACKAGE, log_of

from snakemake_executor_plugin_tpu import ExecutorSettings
from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from snakemake_executor_plugin_tpu.emulator.study import until
from snakemake_executor_plugin_tpu.launch import Launch
from snakemake_executor_plugin_tpu.worker import tasks


def test_task_outlives_its_controller_and_escaped_processes_do_not(agent):
    agent.start("t1", "setsid sleep 1000 & echo $! > $TPU_TASK_FOLDER/escaped; sleep 0.3")
    agent.end_of("t1")  # though nobody follows it
    escaped = int((agent.folder("t1") / "escaped").read_text())
    assert not Path(f"/proc/{escaped}").exists()


def test_stop_signals_once_then_kills(agent):
    command = "trap 'echo got TERM' TERM; echo up; while true; do sleep 0.05; done"
    agent.start("t1", command)
    until(lambda: "up" in (agent.folder("t1") / "log").read_text())
    ((answer, _),) = agent.call("agent", "stop", tasks=["t1"], grace=0.5, lease=120)
    assert answer == {"answer": {"t1": "exited"}}
    assert (agent.folder("t1") / "log").read_text().count("got TERM") == 1
    # Without `stop` the task would have ended by this lease.
    assert float((agent.folder("t1") / "lease").read_text()) == 120
    record = tasks.read_exit(agent.folder("t1"))
    assert (record["code"], record["reason"]) == (137, "stopped")


def test_job_that_checkpoints_on_sigterm_says_so(agent):
    script = "import signal, sys; signal.signal(15, lambda *a: sys.exit(143)); print('up', flush=True); signal.pause()"
    command = f'exec python3 -c "{script}"'
    agent.start("t1", command)
    until(lambda: "up" in (agent.folder("t1") / "log").read_text())
    pid = int((agent.folder("t1") / "pid").read_text())
    os.kill(pid, signal.SIGTERM)  # the worker is shut down
    record = agent.end_of("t1")
    assert (record["code"], record["reason"]) == (143, "shutdown")


def test_a_step_of_the_clock_does_not_end_a_task(tmp_path):
    """The host's clock is set forward by a day, so everything looks a day old."""
    (tmp_path / "lease").write_text("3600")
    lease = tasks.Lease(tmp_path)
    assert not lease.has_expired()
    os.utime(tmp_path / "lease", (0, time.time() - 86400))
    assert not lease.has_expired()


def test_lease_of_an_unattended_task_ends_it(agent):
    agent.start("t1", "sleep 1000", lease=0.2)
    assert agent.end_of("t1")["reason"] == "lease"


def test_task_whose_worker_died_has_vanished(agent):
    agent.start("t1", "echo $$ > $TPU_TASK_FOLDER/job; sleep 1000")
    until(lambda: (agent.folder("t1") / "job").exists() and (agent.folder("t1") / "job").read_text())
    os.kill(int((agent.folder("t1") / "pid").read_text()), signal.SIGKILL)
    os.killpg(int((agent.folder("t1") / "job").read_text()), signal.SIGKILL)
    until(lambda: not tasks.is_supervised(agent.folder("t1")))
    assert agent.call("agent", "follow", task="t1")[-1][0] == {"vanished": True}
    ((answer, _),) = agent.call("agent", "status")
    assert answer["answer"]["tasks"]["t1"]["state"] == "vanished"


def test_exit_code_is_the_jobs_own_though_an_orphan_ends_with_it(agent):
    """`waitpid(-1)` may collect the job itself, which Popen then reports as a success."""
    folder = agent.folder("t1")
    for part in ("bin", "requests"):
        (folder / part).mkdir(parents=True)
    (folder / "log").touch()
    (folder / "exit").write_bytes(b"\0" * tasks.EXIT_BYTES)
    script = (
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(PACKAGE)!r})\n"
        "from pathlib import Path\n"
        "from worker.supervisor import Supervisor\n"
        "reap = Supervisor._reap\n"
        # The supervisor looks after both have ended, the orphan first.
        "def late(self):\n"
        "    while not dead(): time.sleep(0.01)\n"
        "    return reap(self)\n"
        "def dead():\n"
        "    children = Path(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read_text().split()\n"
        "    return all(Path('/proc', c, 'stat').read_text().rpartition(')')[2].split()[0] == 'Z' for c in children)\n"
        "Supervisor._reap = late\n"
        "job = ['/bin/bash', '-c', '(sleep 0.2 &); sleep 0.25; exit 3']\n"
        f"Supervisor(Path({str(folder)!r}), {{'argv': job}}).run()\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "TPU_AGENT_ROOT": str(agent.root)}, check=True
    )
    assert tasks.read_exit(folder)["code"] == 3


def test_long_reason_leaves_the_exit_record_readable(agent):
    agent.run("t1", "true")
    (agent.folder("t1") / "exit").write_bytes(b"\0" * tasks.EXIT_BYTES)
    long = {"code": 127, "reason": "\u00e4" * 300, "started": 1.5, "ended": 2.5}
    tasks.write_exit(agent.folder("t1"), long)
    ((answer, _),) = agent.call("agent", "status")
    record = answer["answer"]["tasks"]["t1"]["exit"]
    assert record["code"] == 127
    assert record["reason"].startswith("\u00e4" * 50)
    (agent.folder("t1") / "exit").write_text('{"code": 1, "rea\n')
    assert "cannot be read" in tasks.read_exit(agent.folder("t1"))["reason"]


def test_task_that_hangs_is_ended_after_its_runtime(agent):
    found = agent.run("t1", "trap 'echo saved; exit 143' TERM; while true; do sleep 0.05; done", runtime=0.3)
    assert "saved" in log_of(found)
    assert found[-1][0]["exit"]["reason"] == "runtime"


def test_a_task_can_ask_to_be_launched_again(agent):
    found = agent.run("t1", "touch $TPU_AGAIN_FILE; exit 75")
    assert (found[-1][0]["exit"]["code"], found[-1][0]["exit"]["reason"]) == (75, "again")


def test_controller_that_finds_an_ended_job_of_several_hosts_takes_its_result(agent):
    """Its requests are deleted with its secrets, but the exit code of rank 0 is kept."""
    made = "cd $TPU_TASK_FOLDER/requests; echo '{}' > run-1.json; echo 0 > run-1.rank0"
    agent.run("job.l1", made)
    frames = [frame for frame, _ in agent.call("agent", "follow", task="job.l1")]
    assert {"rank0": "run-1", "code": 0} in frames
    assert not any("request" in frame for frame in frames)

    async def play() -> set[int]:
        job = {"name": "job.l1", "workers": [None, None], "spec": {}, "attached": True, "logs": agent.root}
        nobody = dict.fromkeys(("is_gone", "on_progress", "on_line"))
        launch = Launch(**job, **nobody, settings=ExecutorSettings())
        for frame in frames:
            launch._on_frame(frame, asyncio.get_running_loop().create_future())
        return launch.codes

    assert asyncio.run(play()) == {0}


def test_the_end_of_a_task_is_in_the_bucket_before_it_counts(agent, tmp_path):
    gcs = GcsServer(tmp_path / "gcs.log")
    gcs.start()
    try:
        gcs.create_bucket("bbb")
        place = {"url": "gs://bbb/runs/x/.snakemake-tpu/job.json", "api": gcs.url}
        place |= {"last_words": "gs://bbb/w.json"}
        about = {"launch": 2, "fingerprint": "f"}
        agent.run("t1", f"curl -s {gcs.url} >/dev/null; echo almost; exit 3", record=place, about=about)
        address = f"{gcs.url}/storage/v1/b/bbb/o/runs%2Fx%2F.snakemake-tpu%2Fjob.json?alt=media"
        with urllib.request.urlopen(address) as answer:
            record = json.load(answer)
        assert record.items() >= {**about, "state": "ended", "code": 3, "reason": "exited"}.items()
        assert record["tail"] == "almost\n"
        assert record["since"] < time.strftime("%Y-%m-%dT%H:%M:%S~", time.gmtime())
        # A bucket that refuses costs the record and not the task.
        gcs.proxy.roles.clear()
        found = agent.run("t2", "exit 4", record=place, about=about)
        assert found[-1][0]["exit"]["code"] == 4
        assert "the record of this launch could not be written" in log_of(found)
    finally:
        gcs.stop()


def test_a_task_that_stalls_is_stopped_with_its_stacks(agent):
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    limits = {"stall": {"seconds": 0.5, "reports": True}, "environment": {"PYTHONFAULTHANDLER": "1"}}
    found = agent.run("t1", f"trap '' TERM; {sys.executable} -c '{program}'; exit 9", **limits)
    assert found[-1][0]["exit"]["reason"] == "stalled"
    assert "most recent call first" in log_of(found)
    assert agent.run("t2", "sleep 1", stall={"seconds": 0.5, "reports": False})[-1][0]["exit"]["code"] == 0


def test_a_rank_that_would_fail_when_another_ends_shows_its_stacks_as_well(agent):
    program = """import os, sys, time
folder = os.environ["TPU_TASK_FOLDER"]
open(folder + "/requests/run-1.json", "w").write("{}")
open(folder + "/progress", "w").write("1")
while not os.path.exists(folder + "/stalled"):  # which makes the controller end the others
    time.sleep(0.01)
sys.exit("connection closed by peer")
"""
    limits = {"stall": {"seconds": 0.5}, "environment": {"PYTHONFAULTHANDLER": "1"}}
    found = agent.run("t1", f"{sys.executable} -c '{program}'", **limits)
    assert found[-1][0]["exit"]["reason"] == "stalled"
    assert "most recent call first" in log_of(found)
    assert "closed by peer" not in log_of(found)
