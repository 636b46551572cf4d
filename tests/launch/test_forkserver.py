"""Jobs as forks of a process that has imported torch already: the same files, output, exit codes and signals."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.shell import python
from tests.training.conftest import config, train_words
from trm.launch.forkclient import FOLDER, encoded, run_elsewhere, send
from trm.launch.forkserver import Servers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks of torch are safe on Linux")
TRM = ["-m", "trm"]


@pytest.fixture(scope="module")
def started():
    found = Servers(threads=1)
    folder = Path(os.environ[FOLDER])
    yield found
    found.close()
    assert [process.wait() for process in found.processes] == [0, 0]
    assert FOLDER not in os.environ
    assert not folder.exists()


@pytest.fixture
def servers(started):
    """A job's environment, as Snakemake makes it."""
    names = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")
    return os.environ | {f"{name}_NUM_THREADS": "1" for name in names}


def train(folder, dataset_folder, name, **training):
    run = config(training={"steps": 6} | training)
    return [*TRM, *train_words(run, dataset_folder, folder / name, log_every=2)]


def test_a_run_is_the_same(servers, dataset_folder, tmp_path):
    python(*train(tmp_path, dataset_folder, "alone"), env=servers | {FOLDER: ""}, check=True)
    forked = python(*train(tmp_path, dataset_folder, "forked"), env=servers, check=True)
    assert "100 %" in forked.stdout
    alone, fork = ((tmp_path / name / "run/weights.safetensors").read_bytes() for name in ("alone", "forked"))
    assert alone == fork


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("train --help", 0, "--dataset"),
        ("evaluate --run nowhere --dataset nowhere --out x.json", 2, "nowhere"),
        ("train --nonsense", 2, "the following arguments are required: --config"),
        ("plot --spec { --table t.csv --out f.pdf", 2, "--spec"),  # the other server
    ],
)
def test_exit_codes_and_messages(servers, tmp_path, words, code, said):
    done = python(*TRM, *words.split(), env=servers, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_fork(number, servers, started, dataset_folder, tmp_path):
    command = [sys.executable, *train(tmp_path, dataset_folder, "long", steps=1_000_000)]
    with subprocess.Popen(command, env=servers, stdout=subprocess.PIPE, text=True) as client:
        next(line for line in client.stdout if re.search(r"step \d+/", line))
        pid = started.processes[0].pid
        server = Path(f"/proc/{pid}/task/{pid}/children")
        assert server.read_text().split(), "no fork runs"
        client.send_signal(number)
        rest = client.stdout.read()  # ends when the fork, which has the other end, ends
    assert client.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL), rest


def test_a_folder_with_a_long_name_leaves_jobs_to_themselves(tmp_path, monkeypatch, capfd):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    found = Servers(threads=1)
    assert [process.wait() for process in found.processes] == [0, 0]
    assert python(*TRM, "train", "--help", check=True).stderr == ""
    found.close()
    assert capfd.readouterr().err == ""


def _ask(servers, arguments):
    """A client that has sent its request."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(Path(os.environ[FOLDER], "training")))
    send(client, encoded(arguments, ".", servers))
    return client


def still_serves(started, servers):
    python(*TRM, "train", "--help", env=servers, check=True)
    return started.processes[0].poll() is None


def test_a_client_that_dies_early_harms_no_server(started, servers):
    """It is gone before it hears which fork is its own."""
    for _ in range(3):
        _ask(servers, ["train", "--help"]).close()
    assert still_serves(started, servers)


def test_a_job_and_its_client_may_end_at_once(started, servers, dataset_folder, tmp_path):
    """The server hears of both while it reads the request of another client."""
    for attempt in range(2):
        command = train(tmp_path, dataset_folder, f"ended{attempt}", steps=1_000_000)[len(TRM) :]
        with _ask(servers, command) as client, socket.socket(socket.AF_UNIX) as slow:
            child = int(client.makefile().readline())
            slow.connect(str(Path(os.environ[FOLDER], "training")))
            slow.sendall((100).to_bytes(4, "big"))
            ended = os.pidfd_open(child)
            os.kill(child, signal.SIGKILL)
            select.select([ended], [], [])
            os.close(ended)
    assert still_serves(started, servers)


def test_a_server_that_dies_with_an_unread_request_leaves_the_job_to_itself(monkeypatch):
    with (
        tempfile.TemporaryDirectory(prefix="trm-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(f"{folder}/analysis")
        server.listen()

        def die():
            connection, _ = server.accept()
            _, files, _, _ = socket.recv_fds(connection, 4, 3)
            connection.recv(1, socket.MSG_PEEK)  # the request is there
            connection.close()
            for file in files:
                os.close(file)

        monkeypatch.setenv(FOLDER, folder)
        thread = threading.Thread(target=die, daemon=True)
        thread.start()
        assert run_elsewhere(["study", "run"]) is None  # it asks no server
        assert run_elsewhere(["plot", "--help"]) is None
        thread.join(timeout=60)
        assert not thread.is_alive()
