"""Profiles as they are shipped: dry runs on the real study, with nothing but the settings a user gives."""

import os
import shutil
import subprocess
import sys

import pytest

from snakemake_executor_plugin_tpu.__main__ import main
from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from tests.pipeline.conftest import PIPELINE, ROOT
from trm.pipeline.cloud import VARIABLES

GOOD = {
    "project": "my-project",
    "zone": "us-central2-b",
    "bucket": "gs://my-bucket/study",
    "pod": "trm-study",
}
FIGURE = "results/plots/scaling_laws.pdf"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return the pipeline's files in a folder of their own; nothing is known of a cloud."""
    for name in PIPELINE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (tmp_path / "config" / "cloud.yaml").unlink(missing_ok=True)  # it may name a real pod
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry_run(checkout, profile: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """Ask Snakemake what it would run."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", f"profiles/{profile}", "-n", "-p", *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("profile", "words"), [("gpu", ()), ("slurm", ("--default-resources", "slurm_account=me"))]
)
def test_other_profiles_plan_the_figure(checkout, profile, words):
    done = dry_run(checkout, profile, FIGURE, *words)
    assert done.returncode == 0, done.stderr
    assert f"results/plots/scaling_laws.pdf\nReason: Missing output files: {FIGURE}" in done.stdout


def test_pod_profile_plans_the_figure_with_few_questions_to_the_bucket(checkout, tmp_path):
    server = GcsServer(tmp_path / "gcs.log")
    server.start()
    try:
        server.create_bucket("my-bucket")
        settings = {VARIABLES[name]: value for name, value in GOOD.items()}
        done = dry_run(checkout, "tpu", FIGURE, STORAGE_EMULATOR_HOST=server.url, **settings)
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    assert f"results/plots/scaling_laws.pdf\nReason: Missing output files: {FIGURE}" in done.stdout
    assert "gs://my-bucket/study/results/runs/" in done.stdout
    # Hundreds of jobs with five objects each; what may be asked is a listing or two for each kind of folder.
    assert sum(server.proxy.counts.values()) < 40


@pytest.mark.parametrize("missing", ["project", "bucket"])
def test_what_the_pod_profile_lacks_is_one_sentence(checkout, missing):
    settings = {VARIABLES[name]: value for name, value in GOOD.items() if name != missing}
    done = dry_run(checkout, "tpu", **settings)
    assert done.returncode != 0
    sentence = f"config/cloud.yaml: {missing} is not set: write it there, or set {VARIABLES[missing]}"
    assert done.stderr.strip().endswith(sentence)
    assert "Traceback" not in done.stderr


def test_commands_for_people_say_it_too(checkout, capfd):
    assert main(["status", "--profile", "profiles/tpu"]) == 1
    assert "project is not set: write it there, or set GOOGLE_CLOUD_PROJECT" in capfd.readouterr().err
