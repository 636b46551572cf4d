"""The agent on this machine: what it starts, keeps, refuses and tells."""

import ast
import fcntl
import os
import subprocess
import sys

import pytest
from local_agent import PACKAGE, frames, log_of
from test_environment import make_wheel

from snakemake_executor_plugin_tpu.emulator.image import make_internet
from snakemake_executor_plugin_tpu.emulator.study import until
from snakemake_executor_plugin_tpu.pod import content_name, pack
from snakemake_executor_plugin_tpu.worker import agent as agent_module
from snakemake_executor_plugin_tpu.worker import claim, tasks, tpurun
from snakemake_executor_plugin_tpu.worker.supervisor import clear_libtpu_lock
from snakemake_executor_plugin_tpu.worker.tpurun import exported, rank_variables


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
    both = [agent.follow("t1", "echo x >> $TPU_TASK_FOLDER/count") for _ in range(2)]
    greetings = sorted(frames(process.stdout.read())[0][0]["hello"] for process in both)
    for process in both:
        process.stdin.close()
        process.stdout.close()
        process.wait()
    assert greetings[-1] == "started"
    assert greetings.count("started") == 1
    assert (agent.folder("t1") / "count").read_text() == "x\n"


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
    agent.start("live", "sleep 1000")
    agent.call("agent", "remove", tasks=["old", "live"])
    assert [path.name for path in sorted((agent.root / "tasks").iterdir())] == ["live"]
    agent.run("old", "true")
    ((answer, _),) = agent.call("agent", "prune")
    assert answer["answer"]["removed"] == ["old"]


def test_task_that_was_stopped_before_it_began_never_begins(agent):
    agent.call("agent", "stop", tasks=["late"], grace=0)
    found = agent.start("late", "touch $TPU_TASK_FOLDER/began")
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


def test_secrets_go_with_the_job_and_scratch_with_its_folder(agent):
    secret = "s3cr3t"
    found = agent.run("t1", "echo x > $TPU_SCRATCH/copy; test -n $TOKEN", environment={"TOKEN": secret})
    assert found[-1][0]["exit"]["code"] == 0
    until(lambda: not tasks.is_supervised(agent.folder("t1")))
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
