"""Profiles as they are shipped: dry runs on the real study, with nothing but the settings a user gives."""

import re
import subprocess
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.__main__ import main
from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from tests.pipeline.conftest import copy_pipeline, job_stats
from tests.pipeline.test_cloud import SETTINGS
from tests.shell import ROOT, python
from trm.backends.tpu.chips import tpu_files
from trm.pipeline.cloud import VARIABLES
from trm.pipeline.project import open_project
from trm.study.text import count

FIGURE = "results/plots/scaling_laws.pdf"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return the pipeline's files in a folder of their own; nothing is known of a cloud."""
    copy_pipeline(tmp_path)
    (tmp_path / "config" / "cloud.yaml").unlink(missing_ok=True)  # it may name a real pod
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry_run(checkout, profile: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """Ask Snakemake what it would run."""
    command = ("-m", "snakemake", "--profile", f"profiles/{profile}", "-n", "-p", *words)
    return python(*command, cwd=checkout, env={"PYTHONPATH": str(ROOT), **environment}, check=True)


@pytest.mark.parametrize(
    ("profile", "figure", "words", "at_once"),
    [("gpu", FIGURE, (), 1), ("slurm", FIGURE, ("--default-resources", "slurm_account=me"), 32)],
)
def test_other_profiles_plan_the_figure(checkout, profile, figure, words, at_once):
    """The plan prices the jobs of the figure, all of them and no others."""
    done = dry_run(checkout, profile, figure, *words)
    assert f"{figure}\nReason: Missing output files: {figure}" in done.stdout
    jobs = job_stats(done.stdout)
    assert f"): {jobs['train']} runs to train\n" in done.stderr
    assert re.search(rf"^total +{sum(jobs.values())} +{jobs['train']} ", done.stderr, re.M)
    assert f"with {count(at_once, 'job')} at once" in done.stderr


def test_pod_profile_plans_the_figure_with_few_questions_to_the_bucket(checkout, tmp_path):
    server = GcsServer(tmp_path / "gcs.log")
    server.start()
    try:
        server.create_bucket("my-bucket")
        done = dry_run(checkout, "tpu", FIGURE, STORAGE_EMULATOR_HOST=server.url, **SETTINGS)
    finally:
        server.stop()
    assert f"results/plots/scaling_laws.pdf\nReason: Missing output files: {FIGURE}" in done.stdout
    assert "gs://my-bucket/trm/results/runs/" in done.stdout
    assert re.search(r"^Job \d+: (.*)$", done.stdout, re.MULTILINE)[1] == "Preflight of 8 hosts"
    # Hundreds of jobs with five objects each; what may be asked is a listing or two for each kind of folder.
    assert sum(server.proxy.counts.values()) < 40


def test_a_question_needs_no_account(checkout, tmp_path, monkeypatch):
    """All that a real run needs is in one line."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), "NO_GCE_CHECK": "true"}.items():
        monkeypatch.setenv(name, value)
    sentence = (
        "config/cloud.yaml: pod is 'A Pod', but must be lower-case letters, digits and dashes (it may come from "
        "TRM_POD); set project (GOOGLE_CLOUD_PROJECT), zone (TRM_ZONE), bucket (TRM_BUCKET) there or in the "
        "environment; get credentials by `gcloud auth application-default login` (docs/cloud.md)"
    )
    done = dry_run(checkout, "tpu", "baseline", TRM_POD="A Pod")
    assert f"Planned as if the bucket were empty. A real run needs it: {sentence}\n" in done.stderr
    assert re.search(r"^10 runs: first runs of baseline \(config/experiments.yaml:\d+\)$", done.stderr, re.M)
    project = open_project({"storage_prefix": "gs://my-bucket/trm"}, dryrun=True)
    assert "no Google credentials were found" in project.files.unread  # which stands in that line then


GPU_HERE = bool(list(Path("/dev").glob("nvidia[0-9]*")))
THE_PAPERS = (
    "config/experiments.yaml is for v4-64, and this machine has no accelerator: `snakemake --profile profiles/local` "
    "runs config/laptop.yaml"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--profile", "profiles/tpu"), "config/cloud.yaml: set project (GOOGLE_CLOUD_PROJECT)"),
        pytest.param(("--cores", "1"), THE_PAPERS,
                     marks=pytest.mark.skipif(GPU_HERE or bool(tpu_files()), reason="an accelerator is here")),
        pytest.param(("--profile", "profiles/gpu", "baseline"),
                     "this machine has none that can be seen: run `nvidia-smi`",
                     marks=pytest.mark.skipif(GPU_HERE, reason="a GPU is here")),
        pytest.param(("--profile", "profiles/local", "--config", "preflight=gpu"), "RED    devices",
                     marks=pytest.mark.skipif(GPU_HERE, reason="a GPU is here")),
    ],
)  # fmt: skip
def test_what_this_machine_cannot_run_is_a_sentence_and_makes_nothing(checkout, words, said):
    done = python("-m", "snakemake", *words, cwd=checkout)
    shown = done.stdout + done.stderr
    assert [said in line for line in shown.splitlines()].count(True) == 1, shown
    assert "Traceback" not in shown
    assert done.returncode == 1
    assert not list(checkout.glob("results/*/*"))


def test_commands_for_people_say_it_too(checkout, capfd):
    assert main(["status", "--profile", "profiles/tpu"]) == 1
    assert "set project (GOOGLE_CLOUD_PROJECT), zone (TRM_ZONE)" in capfd.readouterr().err
