"""Any batch system through `--executor cluster-generic`, with a submit command of our own."""

import json
import sys
from importlib.util import find_spec

import pytest

from tests.pipeline.conftest import new_project, one_run
from tests.shell import python
from trm.launch.controller import UNQUOTED

PLUGIN = "snakemake_executor_plugin_cluster_generic"
SUBMIT = """\
#!/bin/sh
# As a strict batch system: an empty environment, another folder, nothing on stdin; returns at once with an id.
echo "$1:$TRM_FORK_SERVER" >>"$0.asked"
setsid env -i HOME=/nonexistent PATH=/usr/bin:/bin sh -c 'cd / && exec sh "$0"' "$2" >>"$0.log" 2>&1 </dev/null &
echo $!
"""
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        find_spec(PLUGIN) is None, reason=f"{PLUGIN} is not installed: pip install -e '.[dev]'"
    ),
]


@pytest.mark.parametrize("path", ["/home/me/my work/python", "/home/o'brien/python"])
def test_a_python_that_snakemake_cannot_name_in_a_job_is_refused(path, tmp_path):
    project = new_project(tmp_path, one_run(2, scale="gpu"))
    words = ["--profile", "profiles/gpu", "--executor", "cluster-generic", "--jobs", "1"]
    words += ["--cluster-generic-submit-cmd", "false", "--until", "source", "--config", "backend=cpu"]
    program = f"import sys; sys.executable = {path!r}; from snakemake.cli import main; main()"
    done = python("-c", program, *words, cwd=project.folder)
    assert done.returncode == 1
    assert f"jobs of a cluster cannot start {path}: move the project" in done.stderr


@pytest.mark.skipif(not UNQUOTED.fullmatch(sys.executable), reason="Snakemake cannot start this Python")
def test_a_run_is_trained_by_jobs_that_inherit_nothing(tmp_path):
    """The command of docs/cluster.md; every job is a process with a working folder and an environment of its own."""
    (tmp_path / "checkout").mkdir()
    project = new_project(tmp_path / "checkout", one_run(2, scale="gpu"))
    submit = tmp_path / "submit"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    words = ["--profile", "profiles/gpu", "--executor", "cluster-generic", "--cluster-generic-submit-cmd"]
    words += [f"{submit} {{resources.gpu}}:{{resources.runtime}}", "--resources", "gpu=2"]
    words += ["--default-resources", "gpu=0", "runtime=60", "--jobs", "2"]
    words += ["--latency-wait", "5", "--until", "train"]
    done = python("-m", "snakemake", *words, "--config", "backend=cpu", cwd=project.folder)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "submit.log").read_text()
    asked = (tmp_path / "submit.asked").read_text().split()
    assert [line.partition(":")[0] for line in asked] == ["0", "0", "1"]  # puzzles, data set, training
    assert [line.rpartition(":")[2] for line in asked] == ["", "", ""]  # no server of this machine runs them
    (record,) = project.folder.glob("results/runs/*/training.json")
    assert json.loads(record.read_text())["outcome"] == "finished"
