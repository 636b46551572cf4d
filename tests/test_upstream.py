"""The patches for others' faults in docs/upstream: each script finds the faults of the package that is installed, and
none once its patches are applied."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.shell import ROOT, python, run

UPSTREAM = ROOT / "docs/upstream"
SLURM = "snakemake_executor_plugin_slurm"


@pytest.mark.skipif(not shutil.which("patch"), reason="needs patch")
@pytest.mark.parametrize(
    ("script", "packages", "patches", "faults", "left"),
    [
        ("timers", ["snakemake"], "snakemake.patch", 10, 1),  # the one timer that it needs
        ("slurm", [SLURM, f"{SLURM}_jobstep"], "slurm-*.patch", 9, 0),
        pytest.param("snakemake-storage-plugin-gcs", ["snakemake_storage_plugin_gcs"],
                     "snakemake-storage-plugin-gcs.patch", 5, 0, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_patches_mend_the_faults_of_a_package(tmp_path, script, packages, patches, faults, left):
    def found(path: Path | str) -> int:
        said = python(UPSTREAM / f"{script}.py", env={"PYTHONPATH": str(path)}, check=True).stdout
        return int(said) if script == "timers" else len(said.splitlines())

    assert found("") == faults
    for package in packages:
        shutil.copytree(Path(find_spec(package).origin).parent, tmp_path / package)
    for patch in sorted(UPSTREAM.glob(patches)):
        run("patch", "-p1", "-i", patch, cwd=tmp_path, check=True)
    assert found(tmp_path) == left
