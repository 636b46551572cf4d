"""The repository as others meet it: the package installs, the documentation builds, the workflow files are valid."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.full
def test_the_documentation_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "cloud" / "index.html").is_file()
    assert "function trmEngine" in (tmp_path / "play" / "index.html").read_text()
    assert (tmp_path / "search" / "search_index.json").stat().st_size < 1_000_000  # without the weights


@pytest.mark.full
def test_pip_install_gives_a_working_command(tmp_path):
    """From a copy (building writes beside the sources), without the dependencies, which this environment has."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "trm", copy / "trm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "lib"),
    ]
    done = subprocess.run([*install, str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [
            sys.executable,
            str(tmp_path / "lib" / "bin" / "trm"),
            "study",
            "list",
            "--study",
            "config/experiments.yaml",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "baseline" in done.stdout


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]


def test_the_lock_pins_every_direct_dependency_with_hashes():
    lock = (ROOT / "envs/cpu/requirements.lock").read_text()
    pinned = set(re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE))
    wanted = re.findall(r"^([A-Za-z0-9_.-]+)", (ROOT / "envs/cpu/requirements.in").read_text(), re.MULTILINE)
    assert {name.lower().replace("_", "-") for name in wanted} <= {name.lower() for name in pinned}
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


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
