"""The check of a pod: the first rule where a profile asks for it, and no reason to make anything again."""

import os
import re
import shutil

import yaml

from tests.shell import ROOT
from trm.launch.jobs import LOCK, preflight_file
from trm.pipeline.settings import Settings

ASKED = ("--config", "preflight=local")


def order(text: str) -> list[str]:
    """First words of the jobs' messages, in the order in which Snakemake started them."""
    return re.findall(r"^Job \d+: (\w+ ?\w*)", text, re.MULTILINE)


def test_it_runs_before_all_else_and_makes_nothing_stale(project):
    assert not list((project.folder / "results").glob("preflight-*.json"))  # nobody asked
    assert project.would_run(*ASKED) == {}  # what exists asks for no check
    project.edit(lambda study: study["scales"]["laptop"].update(seeds=[0, 1, 2]))
    shutil.rmtree(project.folder / "results/datasets")
    jobs = project.would_run(*ASKED)  # three runs more, on a pod that was never checked
    assert (jobs["preflight"], jobs["dataset"], jobs["train"]) == (1, 2, 3)
    assert "source" not in jobs
    done = project.snakemake(*ASKED, "--cores", "2", "--until", "dataset")
    started = order(done.stdout + done.stderr)
    assert started[0] == "Preflight of"
    assert started.count("Preflight of") == 1
    assert started.count("Data set") == 2
    (rows,) = (project.folder / "results").glob("preflight-*.json")
    assert all(row["green"] for row in yaml.safe_load(rows.read_text())["rows"])
    rows.touch()
    jobs = project.would_run(*ASKED)
    assert [jobs.get(rule, 0) for rule in ("preflight", "dataset", "train")] == [0, 0, 3]
    assert project.would_run("--forcerun", "preflight", *ASKED).keys() == {"preflight"}


def test_another_pod_or_environment_is_checked_anew(monkeypatch, tmp_path):
    def path(hosts=8, **config):
        return preflight_file(Settings.model_validate({"preflight": "tpu", "pod": "a"} | config), hosts)

    assert path() == path()
    assert len({path(), path(pod="b"), path(preflight="local"), path(hosts=4)}) == 4
    lock = tmp_path / "requirements.lock"
    lock.write_text("torch==9\n")
    before = path()
    monkeypatch.setattr("trm.launch.jobs.LOCK", lock)
    assert path() != before
    assert path(preflight="") == ""


def test_hosts_are_sent_the_lock_that_they_are_compared_with():
    profile = (ROOT / "profiles/tpu/config.yaml").read_text()
    (sources,) = re.findall(r"^tpu-sources: (.*)$", profile, re.MULTILINE)
    assert any(LOCK.is_relative_to(ROOT / folder) for folder in sources.split())
    assert os.path.relpath(LOCK, ROOT) in profile
