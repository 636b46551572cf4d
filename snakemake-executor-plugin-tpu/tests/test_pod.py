"""Connections to the hosts: ssh configurations, host keys, environments, and the commands for people."""

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu import claim
from snakemake_executor_plugin_tpu.__main__ import main
from snakemake_executor_plugin_tpu.claim import Claim, describe_controller
from snakemake_executor_plugin_tpu.cloud import Endpoint
from snakemake_executor_plugin_tpu.emulator.network import PORT
from snakemake_executor_plugin_tpu.errors import HostKeyError, PodError, TaskLost, Unreachable
from snakemake_executor_plugin_tpu.pod import Followed, Worker
from snakemake_executor_plugin_tpu.ssh import Ssh, control_folder, release_folder, try_ssh, write_config


async def nobody_knows():
    return None


@contextlib.asynccontextmanager
async def worker_of(pod, folder: Path, host_key: str | None = None, rank: int = 0):
    """A worker of the emulated pod."""
    key = pod.hosts[rank].host_key if host_key is None else host_key
    endpoint = Endpoint(pod.hosts[rank].address, "", (key,) if key else ())
    ssh = Ssh(
        write_config(
            folder / "a folder", [endpoint], user="snakemake", key=pod.key, port=PORT, connect_timeout=4
        ),
        ["w0"],
    )
    try:
        yield Worker(ssh, "w0", endpoint.address, folder=".snakemake-tpu", python="python3")
    finally:
        await ssh.close()


def follow(worker, task, spec, log, **options):
    return worker.follow(task, spec, log, patience=0.5, lease=60, is_gone=nobody_knows, **options)


def spec(command: str) -> dict:
    return {"argv": ["/bin/bash", "-c", command], "lease": 60, "grace": 1}


def test_log_is_delivered_to_the_last_byte(healthy_pod, tmp_path):
    lines, seen = [], []

    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            await worker.deploy()  # it is there already
            command = "seq 20000; echo 17 > $TPU_PROGRESS_FILE; exit 4"
            return await follow(
                worker, "t1", spec(command), tmp_path / "log", on_line=lines.append, on_frame=seen.append
            )

    followed = asyncio.run(play())
    assert followed.exit["code"] == 4
    assert {"progress": "17"} in seen
    assert lines == [str(number) for number in range(1, 20001)]
    assert (tmp_path / "log").read_text().split() == lines
    assert followed.tail[-1] == "20000"


def test_another_host_key_is_refused_for_good(healthy_pod, tmp_path):
    other = healthy_pod.hosts[1].host_key

    async def play():
        async with worker_of(healthy_pod, tmp_path, host_key=other) as worker:
            await worker.deploy()

    with pytest.raises(PodError, match="shows another host key"):
        asyncio.run(play())


def test_follower_reports_another_host_key(healthy_pod, tmp_path):
    async def play():
        async with worker_of(healthy_pod, tmp_path, host_key=healthy_pod.hosts[1].host_key) as worker:
            with pytest.raises(HostKeyError, match="shows another host key"):
                await follow(worker, "t1", None, tmp_path / "log")

    asyncio.run(play())


def test_progress_bars_are_cheap_and_shown_as_they_were_last(tmp_path):
    worker, lines = Worker(None, "w0", "", folder="f"), []
    followed = Followed("t", "w0", tmp_path / "log")
    for number in range(2000):
        worker._lines(followed, b"\r" + f"{number} ".encode() + b"#" * 3000, lines.append)
        assert len(followed.rest) < 20000
    worker._lines(followed, b"\rdone\nnext\r\n", lines.append)
    assert lines == ["done", "next"]


def test_log_that_cannot_be_written_costs_the_log_and_not_the_job(healthy_pod, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    lines = []

    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            return await follow(worker, "t1", spec("seq 50"), Path("/dev/full"), on_line=lines.append)

    assert asyncio.run(play()).exit["code"] == 0
    assert lines == [str(number) for number in range(1, 51)]


def test_a_lost_host_is_reported(healthy_pod, tmp_path):
    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            with pytest.raises(TaskLost, match="does not know the task"):
                await follow(worker, "never-started", None, tmp_path / "log")
            healthy_pod.hosts[0].kill()
            with pytest.raises(Unreachable, match="w0"):
                await worker.status(timeout=5)
            with pytest.raises(TaskLost, match="out of reach"):
                await follow(worker, "t1", spec("true"), tmp_path / "log")

    asyncio.run(play())


def test_silent_network_loses_neither_task_nor_byte(healthy_pod, tmp_path):
    if not healthy_pod.network.separate:
        pytest.skip("the hosts share this machine's network: it needs iproute2 and CAP_NET_ADMIN")
    go, lines = healthy_pod.hosts[0].home / "go", []

    def heard(line: str) -> None:
        lines.append(line)
        if line == "10":
            # The host keeps running, and no packet gets through, as when a laptop is closed.
            healthy_pod.network.cable(0, False)
            go.touch()

    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            command = "seq 10; while [ ! -e ~/go ]; do sleep 0.05; done; seq 11 20; touch ~/ended"
            following = asyncio.ensure_future(
                worker.follow(
                    *("t1", spec(command), tmp_path / "log"),
                    **{"patience": 60, "lease": 60, "is_gone": nobody_knows, "on_line": heard},
                )
            )
            while not go.with_name("ended").exists():
                await asyncio.sleep(0.05)
            assert lines[-1] == "10"
            healthy_pod.network.cable(0, True)
            return await following

    assert asyncio.run(play()).exit["code"] == 0
    assert lines == [str(number) for number in range(1, 21)]


def test_a_silent_controller_loses_the_pod_to_the_next_one(healthy_pod, tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "RETRY_SECONDS", 3.0)
    first = Claim(print, {**describe_controller(), "patience": 0.5})
    second, third = Claim(print), Claim(print)

    async def play():
        async with worker_of(healthy_pod, tmp_path) as one, worker_of(healthy_pod, tmp_path / "2") as two:
            await one.deploy()
            await second.take(one)
            with pytest.raises(PodError, match="in use by the Snakemake of .* Wait for its end"):
                await third.take(two)
            assert (await one.status())["owner"]["id"] == second.owner["id"]
            await second.drop()
            await first.take(one)  # and it sends no heartbeat for half a second
            while (await two.status())["owner"]:
                pass
            await third.take(two)
            while not first.lost:
                await asyncio.sleep(0.05)
            assert "in use" in str(first.lost)
            await first.drop()
            await third.drop()

    asyncio.run(play())


def test_another_key_at_the_old_address_does_not_lose_the_pod(healthy_pod, tmp_path, monkeypatch):
    """As after a preemption, when the next incarnation has the address of the claimed one."""
    monkeypatch.setattr(claim, "RETRY_SECONDS", 0.1)
    held, tried = Claim(print), []

    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            await held.take(worker)
            opened = worker.open

            async def seen(*words):
                tried.append(words)
                return await opened(*words)

            monkeypatch.setattr(worker, "open", seen)
            known = tmp_path / "a folder" / "known_hosts"
            known.write_text(known.read_text().replace(*(host.host_key for host in healthy_pod.hosts[:2])))
            leave = ("ssh", "-F", str(worker.ssh.config), "-O", "exit", "w0")
            await (await asyncio.create_subprocess_exec(*leave, stderr=subprocess.DEVNULL)).wait()
            while len(tried) < 2 and held.lost is None:
                await asyncio.sleep(0.05)
            assert held.lost is None
            await held.drop()

    asyncio.run(play())


def test_hosts_share_neither_processes_nor_network(healthy_pod):
    def namespaces(host, kind):
        for pid in host.processes():
            with contextlib.suppress(FileNotFoundError):  # it has ended since it was listed
                yield os.readlink(f"/proc/{pid}/ns/{kind}")

    spaces = [
        set(namespaces(host, kind))
        for host in healthy_pod.hosts
        for kind in ("pid", "mnt", "uts", "ipc", *(("net",) if healthy_pod.network.separate else ()))
    ]
    assert all(len(space) == 1 for space in spaces)
    assert len(set.union(*spaces)) == len(spaces)


def test_sources_are_copied_once(healthy_pod, tmp_path):
    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            names = {await worker.push_sources(b"content") for _ in range(2)}
            again = Worker(worker.ssh, "w0", "", folder=worker.folder, python=worker.python)
            names.add(await again.push_sources(b"content"))
            (name,) = names
            path = healthy_pod.hosts[0].home / ".snakemake-tpu" / "sources" / f"{name}.tar.gz"
            assert path.read_bytes() == b"content"
            path.unlink()  # the host was re-imaged
            await worker.deploy()
            await worker.push_sources(b"content")
            assert path.read_bytes() == b"content"

    asyncio.run(play())


def test_environment_from_a_lock_file_on_a_host(healthy_pod, tmp_path):
    output = []

    async def play():
        async with worker_of(healthy_pod, tmp_path) as worker:
            await worker.deploy()
            lock = "--no-index\nno-such-package==1\n"
            with pytest.raises(PodError, match="the hosts need a package index"):
                await worker.prepare_environment("bad", lock, "3.11", output.append)

    asyncio.run(play())


def test_sockets_have_short_paths(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/" + "x" * 60)  # as on macOS
    folder = control_folder()
    assert len(str(folder)) < 30
    release_folder(folder)
    with pytest.raises(PodError, match="ssh needs /none for its sockets"):
        control_folder("/none")


def test_ssh_is_tried_before_anything_is_created(tmp_path, monkeypatch):
    wrong = tmp_path / "config"
    wrong.write_text("Host w0\n  NoSuchOption yes\n")
    with pytest.raises(
        PodError, match="does not accept its configuration .*nosuchoption.*correct tpu-ssh-config"
    ):
        asyncio.run(try_ssh(tmp_path / "try", wrong))
    asyncio.run(try_ssh(tmp_path / "try"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PodError, match="There is no ssh on this machine"):
        asyncio.run(try_ssh(tmp_path / "try"))


def test_status_shows_the_state_of_every_rank(healthy_pod, people, tmp_path, capfd):
    async def rank(number: int) -> None:
        about = {"slot": "train-1", "label": "train", "launch": 1, "role": "rank"}
        command = (
            f"echo HBM {number}.5 of 30.8 GiB > $TPU_STATUS_FILE; echo 1 > $TPU_PROGRESS_FILE; sleep 600"
        )
        started = asyncio.Event()
        async with worker_of(healthy_pod, tmp_path / f"r{number}", rank=number) as worker:
            await worker.deploy()
            following = asyncio.ensure_future(
                follow(
                    worker,
                    f"t{number}",
                    {**spec(command), "about": about},
                    tmp_path / f"log{number}",
                    on_frame=lambda frame: started.set() if "progress" in frame else None,
                )
            )
            await started.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def play() -> None:
        await asyncio.gather(rank(0), rank(1))

    asyncio.run(play())
    assert main(["status", "--profile", str(profile_of(tmp_path))]) == 0
    lines = {line.split()[0]: line for line in capfd.readouterr().out.splitlines() if line.startswith("w")}
    assert [line.rpartition("progress ")[2] for line in list(lines.values())[:2]] == [
        "1, HBM 0.5 of 30.8 GiB)",
        "1, HBM 1.5 of 30.8 GiB)",
    ]
    assert lines["w2"].endswith(" -")


def profile_of(folder: Path) -> Path:
    """Write a profile for the emulated pod, and return its folder."""
    (folder / "config.yaml").write_text("executor: tpu\ntpu-accelerator-type: v4-32\ntpu-grace: 1\n")
    return folder


def test_commands_for_people(people, tmp_path, capfd):
    assert main(["status", "--profile", str(profile_of(tmp_path))]) == 0
    output = capfd.readouterr().out
    assert output.startswith("pod: node READY")
    assert all(f"w{rank}" in output for rank in range(4))
    assert main(["ssh", "2", "--", "hostname"]) == 0
    assert capfd.readouterr().out == "t1v-n-emulated-w-2\n"  # nothing else: other programs may read it
    assert main(["ssh", "1", "--", "-o", "RemoteCommand=hostname"]) == 0
    assert capfd.readouterr().out == "t1v-n-emulated-w-1\n"
    assert main(["ssh", "9"]) == 1
    assert "there is no host 9" in capfd.readouterr().err
    assert main(["stop", "../etc"]) == 1
    assert "Nothing of ../etc runs on pod pod" in capfd.readouterr().err
    assert main(["down"]) == 0
    assert main(["status"]) == 1
    assert "node ABSENT" in capfd.readouterr().out
    assert main(["ssh"]) == 1
    assert "set tpu-create: true" in capfd.readouterr().err
    assert main(["up", "--profile", str(tmp_path)]) == 0
    assert "4 host(s) answer" in capfd.readouterr().err
    assert main(["status", "--profile", str(tmp_path / "none")]) == 1
    assert "no Snakemake profile" in capfd.readouterr().err
