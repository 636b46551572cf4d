"""The repository as others meet it: the package installs, the workflow files are valid."""

import os
import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from snakemake_executor_plugin_tpu.worker.environment import UV
from tests.shell import ROOT, python, run
from trm import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.full
def test_pip_install_gives_a_working_command(tmp_path):
    """From a copy (building writes beside the sources), without the dependencies, which this environment has; used in
    an empty folder: the models and the pipeline come along."""
    copy, lib, empty = tmp_path / "copy", tmp_path / "lib", tmp_path / "empty"
    for name in ("trm", "models", "config", "profiles", "workflow", "envs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Snakefile"):
        shutil.copy2(ROOT / name, copy)
    empty.mkdir()
    path = f"{lib / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def installed(*words, folder=empty):
        done = python(*words, cwd=folder, env={"PYTHONPATH": str(lib), "PATH": path}, check=True)
        return done.stdout + done.stderr

    installed("-m", "pip", "install", "--quiet", "--no-deps", "--target", lib, copy, folder=tmp_path)
    trm = lib / "bin" / "trm"
    assert "Solved" in installed(trm, "solve", ".4..1.32........4....6..2..4.......3", "--threads", "1")
    assert "cd own" in installed(trm, "study", "init", "own")
    assert "puzzles: 4 points, 12 runs" in installed(trm, "study", "list", folder=empty / "own")
    assert not list(empty.glob("own/**/__pycache__"))
    dry = ("-m", "snakemake", "--profile", "profiles/local", "-n")
    assert re.search(r"^train +18$", installed(*dry, folder=empty / "own"), re.MULTILINE)


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] == __version__


@pytest.mark.parametrize("name", ["cpu/requirements", "tpu/requirements", "tpu/wandb"])
def test_locks_have_hashes(name):
    """Not of torch, whose build differs by machine."""
    lock = (ROOT / f"envs/{name}.lock").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert {entry.strip() for entry in entries if "--hash=sha256:" not in entry} <= {"torch==2.9.0"}


def test_what_is_installed_by_name_has_a_version():
    """By make and in workflows; actions are named by commit, since a tag may be moved."""
    (_, uv), *_ = re.findall(r"(uv)==([0-9.]+)", (ROOT / "Makefile").read_text())
    texts = [path.read_text() for path in (ROOT / "Makefile", *ROOT.glob(".github/workflows/*.yml"))]
    named = re.findall(r"(?:pip install|call pip,\S+) +([a-z][a-z-]*)(==[0-9.]+)?", "\n".join(texts))
    assert {name for name, version in named if not version} == set()
    assert {name for name, _ in named} == {"build", "jupyterlab", "uv"}
    assert uv == UV
    assert set(re.findall(r"setup-uv@.*\n +with: {version: \"(.*?)\"}", "\n".join(texts))) == {uv}
    uses = re.findall(r"uses: (.*)", "\n".join(texts))
    assert [use for use in uses if not re.search(r"@[0-9a-f]{40} # v[0-9.]+$|^\./", use)] == []


def test_a_release_has_the_version_of_its_tag():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (command,) = (
        step["run"] for step in workflow["jobs"]["build"]["steps"] if "REF_NAME" in step.get("run", "")
    )
    for tag, code in ((f"v{__version__}", 0), ("v0.0.1", 1)):
        done = run("bash", "-c", command, cwd=ROOT, env={"GITHUB_REF_NAME": tag}, check=False)
        assert done.returncode == code


def test_the_lock_pins_every_direct_dependency():
    lock = (ROOT / "envs/cpu/requirements.lock").read_text()
    pinned = set(re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE))
    wanted = re.findall(r"^([A-Za-z0-9_.-]+)", (ROOT / "envs/cpu/requirements.in").read_text(), re.MULTILINE)
    assert {name.lower().replace("_", "-") for name in wanted} <= {name.lower() for name in pinned}


def test_the_conda_environment_has_the_locked_versions():
    """`python envs/conda.py envs/cpu` writes it."""
    namespace = runpy.run_path(str(ROOT / "envs/conda.py"))
    assert (ROOT / "envs/cpu/environment.yaml").read_text() == namespace["content"](Path("envs/cpu"))


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda path: path.name)
def test_github_files_are_yaml_and_run_targets_that_exist(path):
    text = path.read_text()
    assert isinstance(yaml.safe_load(text), dict)
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_another_build_of_torch_goes_into_the_environment_that_is_there(tmp_path):
    """And XLA=0 makes no second environment."""
    for name in ("envs/cpu/requirements.lock", "envs/cpu/torch.txt", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def planned(*words: str) -> str:
        # not as a part of a make that runs the tests
        own = ("env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "-u", "MFLAGS", "-u", "MAKEOVERRIDES")
        return run(
            *own, "make", "-n", "-f", ROOT / "Makefile", "envs", "XLA=0", *words, cwd=tmp_path, check=True
        ).stdout

    assert "Nothing to be done" in planned()
    assert "--torch-backend=cu126 --reinstall-package torch" in planned("CUDA=cu126")
    (tmp_path / ".venv/.cuda").write_text("cu126\n")
    assert "Nothing to be done" in planned("CUDA=cu126")
