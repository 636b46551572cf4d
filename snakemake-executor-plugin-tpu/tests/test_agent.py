"""The agent and its supervisor on this machine, called like the controller calls them over ssh."""

import ast
import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from test_environment import make_wheel

import snakemake_executor_plugin_tpu
from snakemake_executor_plugin_tpu import ExecutorSettings
from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from snakemake_executor_plugin_tpu.emulator.image import make_internet
from snakemake_executor_plugin_tpu.launch import Launch
from snakemake_executor_plugin_tpu.pod import content_name, pack
from snakemake_executor_plugin_tpu.worker import agent as agent_module
from snakemake_executor_plugin_tpu.worker import claim, tasks, tpurun
from snakemake_executor_plugin_tpu.worker.agent import MAGIC
from snakemake_executor_plugin_tpu.worker.supervisor import clear_libtpu_lock
from snakemake_executor_plugin_tpu.worker.tpurun import exported, rank_variables

PACKAGE = Path(snakemake_executor_plugin_tpu.__file__).parent


class Agent:
    """Calls the agent with its own folder."""

    def __init__(self, root: Path):
        self.root = root
        (root / "tasks").mkdir()
        (root / "sources").mkdir()

    environment: dict[str, str] = {}

    def open(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", f"worker.{words[0]}", *words[1:]],
            cwd=PACKAGE,
            env={**os.environ, "TPU_AGENT_ROOT": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
            | self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, *words: str, **request) -> list[tuple[dict, bytes]]:
        """Send a request and return the frames of the answer."""
        with self.open(*words) as process:
            output, _ = process.communicate(json.dumps(request).encode() + b"\n", timeout=180)
        return frames(output)

    def run(self, name: str, command: str, **spec) -> list[tuple[dict, bytes]]:
        """Follow a task to its end."""
        with self.open("agent", "follow") as process:
            process.stdin.write(
                json.dumps({"task": name, "spec": self.spec(command, **spec)}).encode() + b"\n"
            )
            process.stdin.flush()
            output = process.stdout.read()
        return frames(output)

    def spec(self, command: str, **spec) -> dict:
        return {"argv": ["/bin/bash", "-c", command], "lease": 60, "grace": 5, **spec}

    def folder(self, name: str) -> Path:
        return self.root / "tasks" / name


def frames(output: bytes) -> list[tuple[dict, bytes]]:
    _, _, output = output.partition(MAGIC)
    found = []
    while output:
        line, _, output = output.partition(b"\n")
        frame = json.loads(line)
        size = frame.get("bytes", 0)
        found.append((frame, output[:size]))
        output = output[size:]
    return found


def log_of(found) -> str:
    return b"".join(payload for _, payload in found).decode()


def wait_for(condition, process=None) -> None:
    """Wait until a condition holds while `process` runs."""
    while not condition():
        assert process is None or process.poll() is None


@pytest.fixture
def agent(tmp_path):
    """Return an agent, and stop its tasks at the end."""
    agent = Agent(tmp_path)
    yield agent
    agent.call("agent", "stop", tasks=None, grace=0)


def test_task_runs_in_a_private_folder_of_its_own(agent):
    found = agent.run(
        "t1",
        "pwd; umask; echo $A; echo oops >&2; echo 7 > $TPU_PROGRESS_FILE; exit 3",
        environment={"A": "b"},
    )
    assert found[0][0]["hello"] == "started"
    assert log_of(found).split() == [str(agent.folder("t1") / "work"), "0077", "b", "oops"]
    assert {"progress": "7"} in [frame for frame, _ in found]
    assert found[-1][0]["exit"]["code"] == 3
    assert found[-1][0]["exit"]["reason"] == "exited"
    assert agent.folder("t1").stat().st_mode & 0o777 == 0o700


def test_status_shows_the_state_that_a_job_reports(agent):
    agent.run("t1", "printf 'HBM 12.1 of 30.8 GiB,\\nduty cycle 87 %%\\n' > $TPU_STATUS_FILE")
    agent.run("t2", "true")
    ((answer, _),) = agent.call("agent", "status")
    states = {name: task["status"] for name, task in answer["answer"]["tasks"].items()}
    assert states == {"t1": "HBM 12.1 of 30.8 GiB, duty cycle 87 %", "t2": None}


def test_task_is_started_once_and_read_from_any_byte(agent):
    agent.run("t1", "echo once >> $TPU_TASK_FOLDER/count; printf 0123456789")
    again = agent.call("agent", "follow", task="t1", spec=agent.spec("echo twice"), offset=4)
    assert again[0][0]["hello"] == "exited"
    assert log_of(again) == "456789"
    assert (agent.folder("t1") / "count").read_text() == "once\n"


def test_two_starters_make_one_task(agent):
    both = [agent.open("agent", "follow") for _ in range(2)]
    request = (
        json.dumps({"task": "t1", "spec": agent.spec("echo x >> $TPU_TASK_FOLDER/count")}).encode() + b"\n"
    )
    for process in both:
        process.stdin.write(request)
        process.stdin.flush()
    greetings = sorted(frames(process.stdout.read())[0][0]["hello"] for process in both)
    for process in both:
        process.stdin.close()
        process.stdout.close()
        process.wait()
    assert greetings[-1] == "started"
    assert greetings.count("started") == 1
    assert (agent.folder("t1") / "count").read_text() == "x\n"


def test_task_outlives_its_controller_and_escaped_processes_do_not(agent):
    agent.call(
        "agent",
        "follow",
        task="t1",
        spec=agent.spec("setsid sleep 1000 & echo $! > $TPU_TASK_FOLDER/escaped; sleep 0.3"),
    )
    # Nobody follows the task, which ends nevertheless.
    wait_for(lambda: tasks.read_exit(agent.folder("t1")))
    escaped = int((agent.folder("t1") / "escaped").read_text())
    assert not Path(f"/proc/{escaped}").exists()


def test_stop_signals_once_then_kills(agent):
    command = "trap 'echo got TERM' TERM; echo up; while true; do sleep 0.05; done"
    agent.call("agent", "follow", task="t1", spec=agent.spec(command))
    wait_for(lambda: "up" in (agent.folder("t1") / "log").read_text())
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
    agent.call("agent", "follow", task="t1", spec=agent.spec(command))
    wait_for(lambda: "up" in (agent.folder("t1") / "log").read_text())
    pid = int((agent.folder("t1") / "pid").read_text())
    os.kill(pid, signal.SIGTERM)  # the worker is shut down
    wait_for(lambda: tasks.read_exit(agent.folder("t1")))
    record = tasks.read_exit(agent.folder("t1"))
    assert (record["code"], record["reason"]) == (143, "shutdown")


def test_a_step_of_the_clock_does_not_end_a_task(tmp_path):
    """The host's clock is set forward by a day, so everything looks a day old."""
    (tmp_path / "lease").write_text("3600")
    lease = tasks.Lease(tmp_path)
    assert not lease.has_expired()
    os.utime(tmp_path / "lease", (0, time.time() - 86400))
    assert not lease.has_expired()


def test_lease_of_an_unattended_task_ends_it(agent):
    agent.call("agent", "follow", task="t1", spec=agent.spec("sleep 1000", lease=0.2))
    wait_for(lambda: tasks.read_exit(agent.folder("t1")))
    assert tasks.read_exit(agent.folder("t1"))["reason"] == "lease"


def test_task_whose_worker_died_has_vanished(agent):
    agent.call("agent", "follow", task="t1", spec=agent.spec("echo $$ > $TPU_TASK_FOLDER/job; sleep 1000"))
    wait_for(lambda: (agent.folder("t1") / "job").exists() and (agent.folder("t1") / "job").read_text())
    os.kill(int((agent.folder("t1") / "pid").read_text()), signal.SIGKILL)
    os.killpg(int((agent.folder("t1") / "job").read_text()), signal.SIGKILL)
    wait_for(lambda: not tasks.is_supervised(agent.folder("t1")))
    assert agent.call("agent", "follow", task="t1")[-1][0] == {"vanished": True}
    ((answer, _),) = agent.call("agent", "status")
    assert answer["answer"]["tasks"]["t1"]["state"] == "vanished"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\nb", "x" * 201, "a b"])
def test_names_that_lead_elsewhere_are_refused(agent, name):
    ((answer, _),) = agent.call("agent", "follow", task=name, spec=agent.spec("true"))
    assert "is not a task name" in answer["error"]
    ((answer, _),) = agent.call("agent", "remove", tasks=[name])
    assert "is not a task name" in answer["error"]


def test_sources_are_unpacked_and_cannot_leave_the_folder(agent, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("hello")
    archive = pack({"deep/a.txt": source})
    assert archive == pack({"deep/a.txt": source})  # its name is its content
    (agent.root / "sources" / f"{content_name(archive)}.tar.gz").write_bytes(archive)
    found = agent.run("t1", "cat deep/a.txt", sources=content_name(archive))
    assert log_of(found) == "hello"
    evil = pack({"../../evil": source})
    (agent.root / "sources" / "evil.tar.gz").write_bytes(evil)
    found = agent.run("t2", "true", sources="evil")
    assert found[-1][0]["exit"]["code"] == 127
    assert not list(agent.root.rglob("evil"))


def test_remove_and_prune_spare_what_runs(agent):
    agent.run("old", "true")
    agent.call("agent", "follow", task="live", spec=agent.spec("sleep 1000"))
    agent.call("agent", "remove", tasks=["old", "live"])
    assert [path.name for path in sorted((agent.root / "tasks").iterdir())] == ["live"]
    agent.run("old", "true")
    ((answer, _),) = agent.call("agent", "prune")
    assert answer["answer"]["removed"] == ["old"]


def test_task_that_was_stopped_before_it_began_never_begins(agent):
    agent.call("agent", "stop", tasks=["late"], grace=0)
    found = agent.call("agent", "follow", task="late", spec=agent.spec("touch $TPU_TASK_FOLDER/began"))
    assert found[0][0]["hello"] == "exited"
    assert found[-1][0]["exit"]["reason"] == "stopped"
    agent.call("agent", "remove", tasks=["late"])
    assert not (agent.folder("late") / "began").exists()
    assert agent.folder("late").exists()  # a request may still be on its way


def test_libtpu_lock_of_the_dead_is_cleared_that_of_the_living_kept(tmp_path):
    lock = tmp_path / "libtpu_lockfile"
    assert not clear_libtpu_lock(lock)
    # libtpu's own call; it belongs to a process, so another one has to hold it
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        owner.stdout.readline()
        assert not clear_libtpu_lock(lock)
        owner.kill()
    assert clear_libtpu_lock(lock)
    assert not lock.exists()


def test_environment_is_built_once_for_each_lock(agent, tmp_path):
    lock = f"--no-index\n{make_wheel(tmp_path, 42)}\n"
    agent.environment = make_internet(tmp_path, tmp_path)
    request = {"name": "abc", "lock": lock, "python": sys.executable}
    found = [frame for frame, _ in agent.call("environment", **request)]
    folder = found[-1]["answer"]["folder"]
    assert any("Installed 1 package" in frame.get("say", "") for frame in found)
    answer = subprocess.run(
        [f"{folder}/bin/python", "-c", "import tiny; print(tiny.ANSWER)"], capture_output=True
    )
    assert answer.stdout == b"42\n"
    assert [frame for frame, _ in agent.call("environment", **request)] == [{"answer": {"folder": folder}}]
    ((answer, _),) = agent.call("environment", name="bad", lock="", python="/no/python")
    assert "/no/python" in answer["error"]


def test_exit_code_is_the_jobs_own_though_an_orphan_ends_with_it(agent, monkeypatch, tmp_path):
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
    tasks.write_exit(
        agent.folder("t1"), {"code": 127, "reason": "\u00e4" * 300, "started": 1.5, "ended": 2.5}
    )
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


def test_secrets_go_with_the_job_and_scratch_with_its_folder(agent):
    secret = "s3cr3t"
    found = agent.run("t1", "echo x > $TPU_SCRATCH/copy; test -n $TOKEN", environment={"TOKEN": secret})
    assert found[-1][0]["exit"]["code"] == 0
    wait_for(lambda: not tasks.is_supervised(agent.folder("t1")))
    files = [path for path in agent.root.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_text(errors="replace")]
    assert (agent.folder("t1") / "scratch" / "copy").exists()
    agent.call("agent", "prune")
    assert not agent.folder("t1").exists()


def test_the_agent_needs_no_more_than_python_3_10():
    import vermin

    for path in (PACKAGE / "worker").glob("*.py"):
        config = vermin.Config()
        visitor = vermin.visit(path.read_text(), config)
        assert max(visitor.minimum_versions()[1], (3, 0)) <= (3, 10), path
        ast.parse(path.read_text(), feature_version=(3, 10))


def test_variables_of_the_other_ranks():
    base = {"PATH": "/bin", "HOME": "/root"}
    now = {**base, "LR": "1e-3", "PWD": "/x", "TPU_TASK_FOLDER": "/y", "PATH": "/env/bin:/bin"}
    assert exported(base, now) == {"LR": "1e-3", "PATH": "/env/bin:/bin"}
    assert rank_variables(2, 8, "10.0.0.2", "29500")["RANK"] == "2"


def test_a_request_of_tpurun_is_seen_only_when_complete(tmp_path, monkeypatch):
    sent, replace, requests = [], os.replace, tmp_path / "requests"
    requests.mkdir()
    monkeypatch.setattr(agent_module, "send", sent.append)
    # The agent looks just before each rename.
    monkeypatch.setattr(
        os, "replace", lambda *names: (agent_module._send_updates(tmp_path, {}), replace(*names))
    )
    tpurun.write(requests / "run-1.json", '{"argv": []}')
    assert sent == []
    tpurun.write(requests / "run-1.rank0", "3")
    assert sent == [{"request": "run-1", "started": False, "argv": []}]


def test_a_request_that_the_supervisor_has_just_deleted_is_ignored(tmp_path, monkeypatch):
    sent, requests = [], tmp_path / "requests"
    requests.mkdir()
    monkeypatch.setattr(agent_module, "send", sent.append)
    (requests / "run-1.json").symlink_to(tmp_path / "deleted")  # listed, but gone when it is read
    agent_module._send_updates(tmp_path, {})
    assert sent == []


def test_a_look_at_the_owner_does_not_keep_a_controller_off(tmp_path, monkeypatch):
    """`status` holds the lock for a moment to see who has the pod."""
    monkeypatch.setenv("TPU_AGENT_ROOT", str(tmp_path))
    answers, flock = [], fcntl.flock
    looks = [True, False]

    def busy_once(file, how):
        if how & fcntl.LOCK_EX and looks.pop(0):
            raise BlockingIOError
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", busy_once)
    monkeypatch.setattr(claim, "send", answers.append)
    monkeypatch.setattr(claim.time, "sleep", lambda seconds: None)
    claim.hold({"id": "me", "patience": 0})
    assert answers == [{"answer": {"owner": None}}]


def test_controller_that_finds_an_ended_job_of_several_hosts_takes_its_result(agent):
    """Its requests are deleted with its secrets, but the exit code of rank 0 is kept."""
    made = "cd $TPU_TASK_FOLDER/requests; echo '{}' > run-1.json; echo 0 > run-1.rank0"
    agent.run("job.l1", made)
    frames = [frame for frame, _ in agent.call("agent", "follow", task="job.l1")]
    assert {"rank0": "run-1", "code": 0} in frames
    assert not any("request" in frame for frame in frames)

    async def play() -> set[int]:
        launch = Launch(
            name="job.l1",
            workers=[None, None],
            spec={},
            attached=True,
            logs=agent.root,
            settings=ExecutorSettings(),
            is_gone=None,
            on_progress=None,
            on_line=None,
        )
        for frame in frames:
            launch._on_frame(frame, asyncio.get_running_loop().create_future())
        return launch.codes

    assert asyncio.run(play()) == {0}


def test_the_end_of_a_task_is_in_the_bucket_before_it_counts(agent, tmp_path):
    gcs = GcsServer(tmp_path / "gcs.log")
    gcs.start()
    try:
        gcs.create_bucket("bbb")
        place = {
            "url": "gs://bbb/runs/x/.snakemake-tpu/job.json",
            "last_words": "gs://bbb/w.json",
            "api": gcs.url,
        }
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


def test_every_folder_of_a_host_sees_one_claim_and_the_tasks_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "SHARED", tmp_path)
    monkeypatch.setenv("TPU_AGENT_ROOT", "/home/one/.snakemake-tpu")
    mine = tasks.list_for_all("t.l1", {"slot": "t", "label": "a job", "launch": 1})
    assert tasks.tasks_of_others() == {}
    assert tasks.owner_path() == tmp_path / "controller"
    monkeypatch.setenv("TPU_AGENT_ROOT", "/home/two/.snakemake-tpu")
    (other,) = tasks.tasks_of_others().values()
    assert (other["slot"], other["role"], other["state"]) == (
        "t@/home/one/.snakemake-tpu",
        "other",
        "running",
    )
    assert tasks.owner_path() == tmp_path / "controller"
    mine.close()  # its supervisor has ended
    assert tasks.tasks_of_others() == {}
