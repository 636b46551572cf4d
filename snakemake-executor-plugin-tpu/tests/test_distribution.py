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
BLOCK = """\
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("grpc", "snakemake_storage_plugin_gcs") or name.startswith("google."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "snakemake_storage_plugin_gcs" else find(name, *more)
import pkgutil
every = pkgutil.iter_modules
pkgutil.iter_modules = lambda *a: (found for found in every(*a) if found.name != "snakemake_storage_plugin_gcs")
"""


def call(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": 120, "env": {"PATH": "/usr/bin:/bin"}}
    return subprocess.run([python, *words], cwd=folder, **options)


def site_packages(python: Path) -> Path:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(call(python, python.parent, "-c", program).stdout.strip())


def closure(requirements: list[str], found: dict | None = None) -> dict[str, Distribution]:
    """Return the installed distributions that these requirements bring, by name."""
    found = {} if found is None else found
    for requirement in map(Requirement, requirements):
        key = (requirement.name.lower(), *sorted(requirement.extras))
        if key in found:
            continue
        found[key] = one = distribution(requirement.name)
        needed = [Requirement(line) for line in one.requires or ()]
        asked = [{"extra": extra} for extra in ("", *requirement.extras)]
        chosen = [n for n in needed if not n.marker or any(n.marker.evaluate(extra) for extra in asked)]
        for each in chosen:
            each.marker = None
        closure([str(each) for each in chosen], found)
    return found


def make_environment(folder: Path, *requirements: str) -> Path:
    """Make an environment with what these requirements bring, linked from this one, and return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    place = site_packages(python)
    for one in closure([*requirements, "setuptools"]).values():
        for file in one.files or ():
            target = place / file
            if ".." not in file.parts and not target.exists() and "__pycache__" not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(one.locate_file(file))
    return python


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
    """Return the Python of an environment with Snakemake, the plugin's wheel, and what the wheel asks for."""
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    python = make_environment(tmp_path_factory.mktemp("installed") / "env", "snakemake", *needed)
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
        assert (
            command
            in call(installed, folder, "-m", f"snakemake_executor_plugin_tpu{module}", "--help").stdout
        )


def test_missing_packages_of_google_break_only_the_executor(installed, folder):
    block = site_packages(installed) / "sitecustomize.py"
    block.write_text(BLOCK)
    try:
        assert call(installed, folder, "-m", "snakemake", "-n").returncode == 0
        pod = ("--project", "p", "--zone", "z", "--name", "n", "--bucket", "bucket")
        done = call(installed, folder, "-m", "snakemake_executor_plugin_tpu", "status", *pod)
    finally:
        block.unlink()
    assert done.returncode == 1
    assert done.stderr.startswith("The tpu executor needs Google's client libraries")
    assert "Traceback" not in done.stderr
