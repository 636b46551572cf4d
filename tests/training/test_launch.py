"""Several workers on one machine: who starts them, which GPU each takes, and how the job ends."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.training.conftest import config
from trm.backends.cuda.claims import claim
from trm.backends.launch import run_workers

SCRIPT = "import os, sys, time; rank = os.environ['RANK']; "


def test_each_process_claims_another_gpu(tmp_path):
    """Locks of two descriptors exclude each other within a process too."""
    names = ["gpu-a", "gpu-b"]
    assert claim(names, 1, tmp_path) == 1
    assert claim(names, 1, tmp_path) == 0
    assert claim(names, 0, tmp_path) is None


def test_a_claim_ends_with_its_process(tmp_path):
    code = (
        "import pathlib, sys; from trm.backends.cuda.claims import claim; "
        "print(claim('a', 0, pathlib.Path(sys.argv[1])))"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert done.stdout == "0\n"


@pytest.mark.parametrize(
    ("what", "code"), [("sys.exit(0)", 0), ("sys.exit(75)", 75), ("sys.exit(2 if rank == '1' else 0)", 2)]
)
def test_the_exit_code_is_the_workers_own(what, code):
    assert run_workers(2, [sys.executable, "-c", SCRIPT + what]) == code


def test_a_worker_that_waits_for_a_dead_one_is_ended(capfd):
    """As NCCL does, the surviving worker notices nothing and ignores SIGTERM."""
    dies = "os.kill(os.getpid(), 9) if rank == '1' else time.sleep(600)"
    assert run_workers(2, [sys.executable, "-c", SCRIPT + dies], grace=0.5) == 1
    assert capfd.readouterr().err == (
        "worker 1 of 2 died (SIGKILL), so the job ends; start it again to resume from its last checkpoint\n"
    )


def train_command(dataset, root, steps):
    run = config(training={"steps": steps}).model_dump_json()
    words = ["-m", "trm", "train", "--workers", "2", "--config", run, "--dataset", str(dataset)]
    words += [
        "--out",
        str(root / "run"),
        "--checkpoints",
        str(root / "checkpoints"),
        "--log",
        str(root / "log"),
    ]
    return [sys.executable, *words, "--backend", "cpu", "--threads", "1", "--runtime", '{"log_every": 5}']


def test_two_workers_stop_with_a_checkpoint(dataset_folder, tmp_path):
    command = train_command(dataset_folder, tmp_path, 100_000)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        assert any("step 10/" in line for line in job.stdout)
        job.send_signal(signal.SIGTERM)
        rest = job.stdout.read()
    assert job.returncode == 143, rest
    step = int(re.search(r"stopped at step (\d+)", rest).group(1))
    assert f"step-{step:08}" in os.listdir(tmp_path / "checkpoints")
    assert "stopped at step" in (tmp_path / "log").read_text()
