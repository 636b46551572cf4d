"""`trm train` with its data, checkpoints and results in a bucket: the same weights as on a local disk."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.shell import start
from tests.training.conftest import config, same_weights, train_words
from tests.training.puzzles import write_dataset
from tests.training.test_metrics import scalars
from trm.cli import main
from trm.storage import open_store
from trm.storage.folders import upload_folder
from trm.storage.lease import Lease
from trm.storage.mirror import Mirror

from .conftest import QUICK

RUN = config(training={"batch_size": 8, "steps": 40, "snapshots": 2})
EAGER = {"log_every": 1, "evals": 2, "checkpoint_minutes": 1e-9}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory) -> dict:
    """Weights of the run on a local disk, never interrupted."""
    folder = tmp_path_factory.mktemp("local")
    assert main(train_words(RUN, dataset, folder, "--backend", "cpu", **EAGER)) == 0
    return load_file(folder / "run/weights.safetensors")


def weights(where: str, folder: Path) -> dict:
    """Of a run in a bucket."""
    open_store(where, QUICK).get_file("weights.safetensors", folder / "weights.safetensors")
    return load_file(folder / "weights.safetensors")


def train(dataset: Path | str, out: Path | str, checkpoints: str, home: Path, **more: object):
    """A job that trains; `home`: of its machine."""
    words = train_words(RUN, dataset, home, "--backend", "cpu", **EAGER | more)
    words += ["--out", str(out), "--checkpoints", checkpoints]
    env = {**os.environ, "TRM_CACHE": str(home / "cache"), "TRM_LEASE_SECONDS": "3"}
    return start(sys.executable, "-u", "-m", "trm", *words, env=env, stderr=subprocess.PIPE)


def finish(job: subprocess.Popen) -> int:
    """Exit code; what the job said goes to the test's output."""
    out, err = job.communicate(timeout=120)
    print(out, err)
    job.said = out + err
    return job.returncode


def until(job: subprocess.Popen, words: str) -> None:
    """Read the job's lines up to the first with these words."""
    assert any(words in line for line in job.stdout), f"the job ended: {job.stderr.read()}"


def test_everything_in_a_bucket_and_a_machine_lost_on_the_way(dataset, expected, s3, tmp_path):
    """In one of Google's: tests/pipeline/test_pod.py."""
    upload_folder(dataset, open_store(f"{s3.uri}/data/tiny", QUICK))
    where = [f"{s3.uri}/{name}/tiny" for name in ("data", "runs", "checkpoints")]
    runtime = {"tensorboard": True, "profile_steps": "2:3"}
    job = train(*where, tmp_path / "machine1", **runtime)
    store, out = open_store(where[2], QUICK), open_store(where[1], QUICK)
    mirror = Mirror(store)
    until(job, "step 30/40")
    while not any(snapshot.step > 20 for snapshot in mirror.list()):
        assert job.poll() is None or job.returncode == 0
    job.kill()
    job.communicate()

    job = train(*where, tmp_path / "machine2", **runtime)
    assert finish(job) == 0
    assert "resumed from" in job.said
    assert [info.name for info in out.list()] == ["history.csv", "training.json", "weights.safetensors"]
    assert same_weights(weights(where[1], tmp_path), expected)
    assert json.loads(out.get_bytes("training.json"))["run"] == "tiny"
    assert mirror.list()[0].step == 40
    assert not store.stat("lease.json")
    mirror.fetch_extras(tmp_path / "extra")
    series = scalars(tmp_path / "extra/tensorboard")
    assert [step for step, _ in series["train/loss"]] == list(range(1, 41))
    assert "eval/accuracy" in series
    assert (tmp_path / "extra/profile-0.json").exists()


def test_a_stop_leaves_a_checkpoint_here_and_in_the_bucket(dataset, gs, tmp_path):
    job = train(dataset, tmp_path / "runs/tiny", f"{gs}/tiny", tmp_path)
    until(job, "step 10/40")
    job.send_signal(signal.SIGTERM)
    assert finish(job) == 143
    (local,) = (tmp_path / "cache/checkpoints").glob("tiny-*")
    newest = Mirror(open_store(f"{gs}/tiny", QUICK)).list()[0]
    assert (local / newest.name / "manifest.json").exists()
    assert newest.step >= 10


def test_a_second_job_for_a_run_is_refused(dataset, gs, tmp_path):
    with Lease(open_store(f"{gs}/tiny", QUICK), "tiny", term=0.6):
        job = train(dataset, tmp_path / "runs/tiny", f"{gs}/tiny", tmp_path)
        assert finish(job) == 2
    assert f"trm train: The run tiny is being written by process {os.getpid()} on" in job.said
    assert not (tmp_path / "runs/tiny").exists()


def test_credentials_that_expire_on_the_way(gs, proxy, dataset, expected, tmp_path):
    where = f"{gs}/runs/tiny", f"{gs}/checkpoints/tiny"
    job = train(dataset, *where, tmp_path)
    until(job, "step 5/40")
    proxy.answer(then=401)
    assert finish(job) == 2
    assert "step 40/40" in job.said or "so training stops" in job.said  # after three failed uploads
    (sentence,) = (line for line in job.said.splitlines() if line.startswith("trm train:"))
    # the emulator's client has none to renew; the other sentences are tested in test_faults
    assert "credentials" in sentence
    assert "run `gcloud auth application-default login`" in sentence

    proxy.answer()  # renewed
    job = train(dataset, *where, tmp_path)
    assert finish(job) == 0
    assert "resumed from" in job.said  # nothing was trained twice
    assert same_weights(weights(where[0], tmp_path), expected)
