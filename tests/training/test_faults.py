"""Faults, each by really doing it: the run ends with the weights of one without faults, or with one clear sentence."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.shell import python, run, start
from tests.training.conftest import config, same_weights, train, train_words
from trm.training.checkpoints.folder import CheckpointFolder
from trm.training.outputs import load_weights

KILLS, SEED = 20, 7
RUN = config(training={"steps": 30, "snapshots": 2})
EAGER = {"log_every": 5, "checkpoint_minutes": 1e-6, "evals": 3}


def command(data: Path, root: Path) -> list[str]:
    """Arguments of `python` that train RUN below `root`."""
    return ["-m", "trm", *train_words(RUN, data, root, "--backend", "cpu", **EAGER)]


@pytest.fixture(scope="module")
def expected(dataset_folder, tmp_path_factory) -> dict:
    """Weights of the run that nothing disturbed."""
    root = tmp_path_factory.mktemp("whole")
    train(RUN, dataset_folder, root)
    return load_weights(root / "run").tensors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_twenty_random_moments(dataset_folder, expected, tmp_path):
    arguments = command(dataset_folder, tmp_path)[2:]
    done = python("-m", "tests.training.killed", KILLS, SEED, *arguments, check=True)
    moments = [done.stdout.count(f"in its {phase}") for phase in ("start", "steps")]
    assert sum(moments) == KILLS
    assert min(moments) >= KILLS // 5
    assert "resumed from" in done.stdout
    assert same_weights(load_file(tmp_path / "run/weights.safetensors"), expected)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.started() == folder.steps()
    assert list(tmp_path.rglob("*.tmp")) == []


UNSHARE = ["unshare", "--map-root-user", "--mount"]
LIMITS = {
    "the disk is full; free space and start again": (
        'mount -t tmpfs -o size=20m tmpfs "$0"; head -c 19180k /dev/zero >"$0/other"; "$@"; code=$?; rm "$0/other"; '
        '"$@" && exit $code'
    ),
    "may not write files of this size": '(ulimit -f 100; exec "$@"); code=$?; "$@" && exit $code',
}
"""By what is said, what limits the checkpoints in the folder $0, and what happens once it is gone."""


@pytest.mark.skipif(
    not shutil.which("unshare") or run(*UNSHARE, "true").returncode != 0,
    reason="no mount namespaces for this user: no disk can be filled here",
)
@pytest.mark.parametrize("said", LIMITS)
def test_what_cannot_be_written_is_said_and_the_run_goes_on_once_there_is_room(
    said, dataset_folder, expected, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = command(dataset_folder, tmp_path)
    arguments[arguments.index("--checkpoints") + 1] = str(disk / "checkpoints")
    done = run(*UNSHARE, "bash", "-c", LIMITS[said], disk, sys.executable, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert ("resumed from" in done.stdout) is (
        "full" in said
    )  # the other limit leaves no room for a checkpoint
    assert same_weights(load_file(tmp_path / "run/weights.safetensors"), expected)


def test_two_starts_of_one_run_at_once_end_with_the_same_weights(dataset_folder, expected, tmp_path):
    words = [sys.executable, "-u", *command(dataset_folder, tmp_path)]
    jobs = [start(*words) for _ in range(2)]
    said = [job.communicate(timeout=300)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert sum("trains this run; waiting for it to end" in text for text in said) <= 1
    assert sum("step 5/30" in text for text in said) == 1  # one trained, the other found it done
    assert same_weights(load_file(tmp_path / "run/weights.safetensors"), expected)
