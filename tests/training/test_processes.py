"""Several workers on one machine: who starts them, which GPU each takes, and how the job ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile

import pytest

from tests.shell import start
from tests.training.conftest import config, train_words
from trm.backends.cuda.gpus import claim
from trm.backends.processes import run_workers

SCRIPT = "import os, sys, time; rank = os.environ['RANK']; "


def test_each_process_claims_another_gpu(tmp_path):
    """More processes than GPUs spread over them, and a process that asks again keeps its own."""
    code = (
        "import os, pathlib, sys; os.umask(0o077); from trm.backends.cuda.gpus import claim; "
        "ask = lambda: claim(['a', 'b'], 1, pathlib.Path(sys.argv[1])); print(*ask(), *ask(), flush=True); input()"
    )
    told = []
    for _ in range(2):  # the claims end with their processes
        processes = []
        for _ in range(5):
            processes.append(start(sys.executable, "-c", code, tmp_path, stdin=subprocess.PIPE, stderr=None))
            first, again = (lambda words: (words[:2], words[2:]))(processes[-1].stdout.readline().split())
            assert first == again
            told.append(first)
        for process in processes:
            process.communicate("\n")
    expected = [["1", "False"], ["0", "False"], ["1", "True"], ["0", "True"], ["1", "True"]]
    assert told == expected * 2
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666}


def test_a_lock_that_another_user_may_not_read_stops_nobody(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *mode):
        if path == tmp_path / "trm-a.lock":
            raise PermissionError
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    assert claim(["a"], 0, tmp_path) == (0, False)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.with_name("victim"))])
def test_what_another_user_puts_in_place_of_a_lock_is_neither_opened_nor_followed(
    make, tmp_path, monkeypatch
):
    """A FIFO would wait for ever, and the target of a link become writable for everybody."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    make(tmp_path / "trm-c.lock")
    assert claim(["c"], 0, tmp_path) == (0, False)
    assert not (tmp_path / "victim").exists()
    assert (tmp_path / f"own/trm-{os.getuid()}/trm-c.lock").exists()


THEIR_FOLDER = "os.path.dirname(os.environ['TRM_WORKERS_STORE'])"


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (f"sys.exit('MASTER_PORT' in os.environ or os.stat({THEIR_FOLDER}).st_mode & 0o077)", 0),
        ("sys.exit(75)", 75),
        ("sys.exit(2 if rank == '1' else 0)", 2),
    ],
)
def test_workers_meet_in_a_folder_of_their_user_and_give_the_exit_code(what, code, tmp_path, monkeypatch):
    """The folder goes with them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run_workers(2, [sys.executable, "-c", SCRIPT + what]) == code
    assert not list(tmp_path.iterdir())


def test_a_worker_that_waits_for_a_dead_one_is_ended(capfd):
    """As NCCL does, the surviving worker notices nothing and ignores SIGTERM."""
    dies = "os.kill(os.getpid(), 9) if rank == '1' else time.sleep(600)"
    assert run_workers(2, [sys.executable, "-c", SCRIPT + dies], grace=0.5) == 1
    assert capfd.readouterr().err == (
        "worker 1 of 2 died (SIGKILL), so the job ends; start it again to resume from its last checkpoint\n"
    )


def test_two_workers_stop_with_a_checkpoint(dataset_folder, tmp_path):
    more = ["--workers", "2", "--backend", "cpu", "--log", str(tmp_path / "log")]
    words = train_words(config(training={"steps": 100_000}), dataset_folder, tmp_path, *more, log_every=5)
    with start(sys.executable, "-m", "trm", *words) as job:
        assert any("step 10/" in line for line in job.stdout)
        job.send_signal(signal.SIGTERM)
        rest = job.stdout.read()
    assert job.returncode == 143, rest
    step = int(re.search(r"stopped at step (\d+)", rest).group(1))
    assert f"step-{step:08}" in os.listdir(tmp_path / "checkpoints")
    assert "stopped at step" in (tmp_path / "log").read_text()
