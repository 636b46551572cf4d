"""The plugin as a distribution: installed from its wheel, not installed, and without Google's packages."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

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
    return subprocess.run(
        [python, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin"},
    )


def site_packages(python: Path) -> Path:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(call(python, python.parent, "-c", program).stdout.strip())


def make_environment(folder: Path) -> Path:
    """Make an environment with this one's packages and return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    # As a plain path: its path files, which find the plugin's sources, are not read.
    (site_packages(python) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """Return the Python of an environment that has Snakemake (this one's), but not the plugin."""
    folder = tmp_path_factory.mktemp("bare")
    python = make_environment(folder)
    (folder / "Snakefile").write_text("rule all:\n    output: 'out'\n    shell: 'echo done > {output}'\n")
    return python


@pytest.fixture(scope="module")
def installed(bare, tmp_path_factory) -> Path:
    """Return a copy of it into which the plugin's wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(
        ROOT, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run([*pip, "wheel", *options], check=True, capture_output=True, cwd=folder)
    (wheel,) = folder.glob("snakemake_executor_plugin_tpu-*.whl")
    python = make_environment(folder / "env")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    return python


def test_without_the_plugin_snakemake_works(bare):
    done = call(bare, bare.parents[1], "-m", "snakemake", "-n")
    assert done.returncode == 0, done.stderr
    assert call(bare, bare.parents[1], "-c", "import snakemake_executor_plugin_tpu").returncode == 1


def test_the_wheel_brings_executor_commands_and_emulator(installed, bare):
    folder = bare.parents[1]
    where = "import snakemake_executor_plugin_tpu as p; print(p.__file__)"
    assert str(installed.parents[1]) in call(installed, folder, "-c", where).stdout
    assert "--tpu-accelerator-type" in call(installed, folder, "-m", "snakemake", "--help").stdout
    assert "status" in call(installed, folder, "-m", "snakemake_executor_plugin_tpu", "--help").stdout
    assert (
        "preempt" in call(installed, folder, "-m", "snakemake_executor_plugin_tpu.emulator", "--help").stdout
    )
    files = "from snakemake_executor_plugin_tpu.emulator.study import WORKFLOW as w; print(*w.rglob('*'))"
    assert "count.py" in call(installed, folder, "-c", files).stdout


def test_missing_packages_of_google_break_only_the_executor(installed, bare):
    folder = bare.parents[1]
    block = site_packages(installed) / "sitecustomize.py"
    block.write_text(BLOCK)
    try:
        assert call(installed, folder, "-m", "snakemake", "-n").returncode == 0
        pod = ("--project", "p", "--zone", "z", "--name", "n")
        done = call(installed, folder, "-m", "snakemake_executor_plugin_tpu", "status", *pod)
    finally:
        block.unlink()
    assert done.returncode == 1
    assert done.stderr.startswith("The tpu executor needs Google's client libraries")
    assert "Traceback" not in done.stderr
