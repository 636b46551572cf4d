"""What another user of a host prepares under a name that can be guessed is neither written nor followed."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from snakemake_executor_plugin_tpu.control import host_code
from snakemake_executor_plugin_tpu.emulator import image
from snakemake_executor_plugin_tpu.emulator.web import Handler, HttpServer
from snakemake_executor_plugin_tpu.worker import bootstrap, environment, files, loop, runner
from snakemake_executor_plugin_tpu.worker.bucket import seal

CODE = host_code()
NAME = hashlib.sha256(CODE).hexdigest()


class Bucket(Handler):
    """Answers a token, and the code of the loop."""

    def do_GET(self):
        token = json.dumps({"access_token": "token"}).encode()
        self.answer(200, token if self.path.endswith("/token") else CODE)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_HOST_ROOT", str(tmp_path))
    return tmp_path


def write(home, monkeypatch):
    files.write_json(home / "state", [1])
    assert files.read_json(home / "state") == [1]
    return "state"


def fetch(home, monkeypatch):
    server = HttpServer(("127.0.0.1", 0), Bucket)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    server.start()
    try:
        bootstrap.fetch({"bucket": "gs://bucket"}, home / NAME)
    finally:
        server.stop()
    assert (home / NAME / "tpu_host" / "worker" / "loop.py").exists()
    return NAME


def install(home, monkeypatch):
    (home / "internet").mkdir()
    image._wheel_of_uv(home / "internet")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "internet"))
    assert os.access(environment.install_uv(), os.X_OK)
    return f"uv-{environment.UV}"


@pytest.mark.parametrize("make", [write, fetch, install])
def test_a_link_under_a_guessed_name_is_not_followed(home, monkeypatch, make):
    mine = home / "mine"
    mine.mkdir()
    for name in ("state", NAME, f"uv-{environment.UV}"):
        (home / f".{name}.{os.getpid()}").symlink_to(mine)
    umask = os.umask(0o077)
    try:
        made = home / make(home, monkeypatch)
    finally:
        os.umask(umask)
    assert not made.is_symlink()
    assert made.stat().st_mode & 0o077 == 0
    assert not [*mine.iterdir()]
    left = {path.name for path in home.iterdir()} - {"mine", "internet", made.name}
    assert len(left) == 3  # the links: no temporary name is left


def test_each_launch_has_a_ballast(home, monkeypatch):
    monkeypatch.setattr(runner, "start", lambda *arguments: None)
    orders = {"rank": 0, "hosts": 1, "node": "n", "boot": "b", "times": {"fence": 60}, "key": "00"}
    one = loop.Loop({**orders, "bucket": "gs://b", "idle_seconds": 0, "end": 0})
    job = {"job": "j", "hosts": [0], "index": 0, "run": 1, "setup": {"name": ""}, "sources": "", "python": ""}
    for launch in range(2):
        one.current = job | {"launch": launch, "grace": 1, "lease": 0, "runtime": 0, **seal(bytes(1), {})}
        one._start(one.current, one.task, {"argv": ["true"]}, {})
        (home / "ballast").unlink()  # as a full disk does


def test_the_work_of_a_job_that_filled_the_disk_makes_room_for_its_end(home):
    task = files.Task("full")
    (task.folder / "work").mkdir(parents=True)
    (task.folder / "fence").touch()
    (task.folder / "exit").write_bytes(bytes(files.EXIT_BYTES))
    spec = {"argv": ["/bin/sh", "-c", "echo > large; exit 3"], "directory": ".", "fence": 60}
    files.write_json(task.folder / "spec", spec)
    program = (
        "from snakemake_executor_plugin_tpu.worker import files, runner; runner.free_disk = lambda: 0; "
        "runner.Runner(files.Task('full'), {}).run()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert {"code": 3, "why": "disk full"}.items() < task.exit().items()
    assert not (task.folder / "work").exists()


def test_a_link_in_place_of_the_lock_of_libtpu_is_left_alone(home):
    (home / "mine").write_text("mine")
    (home / "lock").symlink_to("mine")
    assert not runner.clear_libtpu_lock(home / "lock")
    assert (home / "lock").is_symlink()
    (home / "lock").unlink()
    (home / "lock").touch()
    assert runner.clear_libtpu_lock(home / "lock")
