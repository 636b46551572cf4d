"""Every Snakemake command of docs/cluster.md, as a dry run."""

import re
import shlex
import sys
from copy import deepcopy
from importlib.util import find_spec

import pytest

from tests.pipeline.conftest import ROOT, STUDY, job_stats, new_project
from tests.shell import run

PAGE = (ROOT / "docs/cluster.md").read_text().replace("\\\n", "")
COMMANDS = re.findall(r"^snakemake .*", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A small study with the experiments that the page names."""
    study = deepcopy(STUDY)
    study["scales"]["gpu"] = study["scales"].pop("other")
    for name in ("baseline", "recursion_schedule"):
        study["experiments"][name] = {"question": "?", "figures": [{"kind": "curves", "name": name}]}
    return new_project(tmp_path_factory.mktemp("cluster"), study).folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_plans_training(checkout, command):
    if "cluster-generic" in command and not find_spec("snakemake_executor_plugin_cluster_generic"):
        pytest.skip("snakemake-executor-plugin-cluster-generic is not installed: pip install -e '.[dev]'")
    words = [sys.executable, "-m", *shlex.split(command.replace("$PWD", "/images"))]
    words.insert(3, "--dry-run")
    if "apptainer" in command:
        words.remove("apptainer"), words.remove("--sdm")  # which Snakemake looks for in a dry run too
    done = run(*words, cwd=checkout, check=True)
    assert job_stats(done.stdout)["train"]
    assert "Warning" not in done.stderr
