"""Faults, each by really doing it: the run ends with the weights of one without faults, or with one clear sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.conftest import config, train, trainer
from tests.training.test_resume import damage_flip, damage_missing, damage_truncate
from trm.training.checkpoints.folder import CheckpointFolder
from trm.training.outputs import load_weights

KILLS, SEED = 20, 7
RUN = config(training={"steps": 30, "snapshots": 2})
EAGER = {"log_every": 5, "checkpoint_minutes": 1e-6, "evals": 3, "keep_checkpoints": 3}


def command(data: Path, root: Path, run=RUN, **runtime) -> list[str]:
    """Arguments of `python -m trm` that train `run` below `root`."""
    return [
        *("train", "--config", run.model_dump_json(), "--dataset", str(data), "--out", str(root / "run")),
        *("--checkpoints", str(root / "checkpoints"), "--threads", "1", "--backend", "cpu"),
        *("--runtime", json.dumps(EAGER | runtime)),
    ]


def python(*words: str, shell: str = "") -> subprocess.CompletedProcess:
    """Run `python words`, after `shell` in the same bash."""
    line = f'{shell} exec "$@"'
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, *words], capture_output=True, text=True, timeout=300
    )


def equal(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def expected(dataset_folder, tmp_path_factory) -> dict:
    """Weights of the run that nothing disturbed."""
    root = tmp_path_factory.mktemp("whole")
    train(RUN, dataset_folder, root)
    return load_weights(root / "run").tensors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_twenty_random_moments(dataset_folder, expected, tmp_path):
    killed = ("-m", "tests.training.killed", str(KILLS), str(SEED))
    done = python(*killed, *command(dataset_folder, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("at call") == KILLS
    assert "resumed from" in done.stdout
    assert equal(load_file(tmp_path / "run/weights.safetensors"), expected)
    kept = CheckpointFolder(tmp_path / "checkpoints")
    assert kept.unfinished() == []
    assert list(tmp_path.rglob("*.tmp")) == []


def test_what_a_kill_leaves_half_written_is_removed(dataset_folder, tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints/run")
    folder.write(1, "state.safetensors", b"half")  # no manifest followed
    for name in (".history.csv.1.tmp", ".restore-step-1/part"):
        folder.write_extra(name, b"half")
    folder.tidy()
    assert [path.name for path in folder.root.iterdir()] == ["step-00000001"]
    found = train(config(training={"steps": 3}), dataset_folder, tmp_path)
    assert found.saver.folder.unfinished() == []
    assert found.saver.folder.steps() == [2, 3]


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_missing])
@pytest.mark.parametrize("name", ["state.safetensors", "carry-0.safetensors", "manifest.json"])
def test_a_broken_newest_checkpoint_costs_one_step_and_changes_nothing(
    name, damage, dataset_folder, expected, tmp_path, caplog
):
    found = trainer(RUN, dataset_folder, tmp_path, **EAGER)
    original = found.program

    def program(batch, h_cycles, l_cycles):
        original(batch, h_cycles, l_cycles)
        found.record.done == 8 and os.kill(os.getpid(), 15)

    found.program = program
    assert found.run() == 143
    newest = found.saver.folder.steps()[-1]
    damage(found.saver.folder.folder(newest) / name)
    caplog.clear()
    again = trainer(RUN, dataset_folder, tmp_path, **EAGER)
    assert again.record.done == newest - 1
    assert again.run() == 0
    assert equal(load_weights(tmp_path / "run").tensors, expected)


def may_mount() -> bool:
    """Whether this user may make mount namespaces."""
    if not shutil.which("unshare"):
        return False
    probe = ["unshare", "--map-root-user", "--mount", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="no mount namespaces for this user: no disk can be filled here")
def test_a_full_disk_is_said_and_the_run_goes_on_once_there_is_room(dataset_folder, expected, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = command(dataset_folder, tmp_path)
    arguments[arguments.index("--checkpoints") + 1] = str(disk / "checkpoints")
    script = f"""
        mount -t tmpfs -o size=1300k tmpfs {disk}
        "$@"; code=$?
        ls -d {disk}/checkpoints/step-* >&2
        mount -o remount,size=100m {disk}
        "$@" && exit $code
    """
    words = [
        "unshare",
        "--map-root-user",
        "--mount",
        "bash",
        "-c",
        script,
        "bash",
        sys.executable,
        "-m",
        "trm",
    ]
    done = subprocess.run([*words, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the disk is full; free space and start again" in done.stderr
    assert "Traceback" not in done.stderr
    assert "resumed from" in done.stdout
    assert equal(load_file(tmp_path / "run/weights.safetensors"), expected)


def test_a_limit_on_file_sizes_is_said_and_the_run_goes_on_without_it(dataset_folder, expected, tmp_path):
    done = python("-m", "trm", *command(dataset_folder, tmp_path), shell="ulimit -f 100;")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "may not write files of this size" in done.stderr.splitlines()[-1]
    assert python("-m", "trm", *command(dataset_folder, tmp_path)).returncode == 0
    assert equal(load_file(tmp_path / "run/weights.safetensors"), expected)


def test_two_starts_of_one_run_at_once_end_with_the_same_weights(dataset_folder, expected, tmp_path):
    words = [sys.executable, "-u", "-m", "trm", *command(dataset_folder, tmp_path)]
    jobs = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)
    ]
    said = [job.communicate(timeout=300)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert sum("trains this run; waiting for it to end" in text for text in said) <= 1
    assert sum("step 5/30" in text for text in said) == 1  # one trained, the other found it done
    assert equal(load_file(tmp_path / "run/weights.safetensors"), expected)
