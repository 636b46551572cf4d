"""The plugin as a distribution: installed from its wheel, and without Google's packages."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.full


def call(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": 120, "env": {"PATH": "/usr/bin:/bin"}}
    return subprocess.run([python, *words], cwd=folder, **options)


def closure(*requirements: str) -> dict[tuple[str, ...], Distribution]:
    """Return the installed distributions that these requirements bring."""
    found: dict[tuple[str, ...], Distribution] = {}
    queue = [*map(Requirement, requirements)]
    while queue:
        wanted = queue.pop()
        key = (wanted.name.lower(), *sorted(wanted.extras))
        if key not in found:
            found[key] = distribution(wanted.name)
            asked = [{"extra": extra} for extra in ("", *wanted.extras)]
            needed = map(Requirement, found[key].requires or ())
            queue += [n for n in needed if not n.marker or any(map(n.marker.evaluate, asked))]
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """Return the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, folder / "source", ignore=ignored)
    program = f"from setuptools import build_meta as b; b.build_sdist({str(folder)!r}); b.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=source)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with a workflow."""
    (tmp_path / "Snakefile").write_text("rule all:\n    output: 'out'\n    shell: 'echo done > {output}'\n")
    return tmp_path


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """Return the Python of an environment with Snakemake, the wheel, and what it asks for, linked from this one."""
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    folder = tmp_path_factory.mktemp("installed") / "env"
    venv.create(folder, with_pip=False)
    python, (place,) = folder / "bin" / "python", folder.glob("lib/python*/site-packages")
    for one in closure("snakemake", "setuptools", *needed).values():
        for file in one.files or ():
            target = place / file
            if ".." not in file.parts and not target.exists() and "__pycache__" not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(one.locate_file(file))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", built[0]], check=True)
    return python


def test_the_distributions_are_complete(built):
    with zipfile.ZipFile(built[0]) as wheel, tarfile.open(built[1]) as source:
        names = wheel.namelist()
        (metadata,) = [wheel.read(name).decode() for name in names if name.endswith("/METADATA")]
        in_source = {name.partition("/")[2] for name in source.getnames()}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {"LICENSE", "docs/intro.md", "docs/further.md", "tests/test_studies.py"} <= in_source
    for line in ("Project-URL: Repository, https://", "Author: ", "Classifier: ", "License-Expression: MIT"):
        assert f"\n{line}" in metadata
    # a link that works where the page is shown: on PyPI there are no files beside it
    assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)]*)\)", metadata))


def test_every_module_works_with_what_the_wheel_asks_for(installed):
    program = """
import importlib, pkgutil, snakemake_executor_plugin_tpu as plugin
for module in pkgutil.walk_packages(plugin.__path__, plugin.__name__ + "."):
    if ".emulator" not in module.name and "__main__" not in module.name:
        importlib.import_module(module.name)
"""
    done = call(installed, installed.parents[1], "-c", program)
    assert done.returncode == 0, done.stderr


def test_the_wheel_brings_executor_commands_and_emulator(installed, folder):
    where = "import snakemake_executor_plugin_tpu as p; print(p.__file__)"
    assert str(installed.parents[1]) in call(installed, folder, "-c", where).stdout
    assert "--tpu-accelerator-type" in call(installed, folder, "-m", "snakemake", "--help").stdout
    for module, command in (("", "status"), (".emulator", "preempt")):
        program = f"snakemake_executor_plugin_tpu{module}"
        assert command in call(installed, folder, "-m", program, "--help").stdout


def test_missing_packages_of_google_break_only_the_executor(installed, folder):
    (place,) = installed.parents[1].glob("lib/python*/site-packages")
    for name in ("google", "grpc", "snakemake_storage_plugin_gcs"):
        (place / name).rename(place / f"away-{name}")
    try:
        assert call(installed, folder, "-m", "snakemake", "-n").returncode == 0
        pod = ("--project", "p", "--zone", "z", "--name", "n", "--bucket", "bucket")
        done = call(installed, folder, "-m", "snakemake_executor_plugin_tpu", "status", *pod)
    finally:
        for name in ("google", "grpc", "snakemake_storage_plugin_gcs"):
            (place / f"away-{name}").rename(place / name)
    assert done.returncode == 1
    assert done.stderr.startswith("The tpu executor needs Google's client libraries")
    assert "Traceback" not in done.stderr
