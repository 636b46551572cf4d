"""The container image: buildah makes it from the Dockerfile; it plans the report and runs a study."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests import shell
from tests.pipeline.conftest import one_run

ROOT = Path(__file__).parents[1]
BASE = "python:3.12-slim"
DEBIAN = ("python3", "python3-pip", "ca-certificates")
"""What a base of Debian's packages needs."""


@pytest.fixture(scope="module")
def buildah(tmp_path_factory) -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """A function that runs buildah with a storage of its own: `buildah("images")`."""
    if "TRM_TEST_IMAGE" not in os.environ:
        pytest.skip("`make test-image` builds the image: ten minutes and more")
    if not shutil.which("buildah"):
        pytest.skip("there is no engine for containers: apt-get install buildah")
    folder = tmp_path_factory.mktemp("containers")
    places = (f"--root={folder}/storage", f"--runroot={folder}/run")

    def run(*words: object, check: bool = True) -> subprocess.CompletedProcess:
        isolation = {"BUILDAH_ISOLATION": "chroot"}  # in a container, too
        output = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return shell.run("buildah", *places, *words, env=isolation, check=check, timeout=None, **output)

    yield run
    run("rm", "--all", check=False)
    run("rmi", "--all", "--force", check=False)


@pytest.fixture(scope="module")
def base(buildah, tmp_path_factory) -> str:
    """The Dockerfile's base, or one of Debian's packages where no registry is reached."""
    pulled = buildah("pull", f"docker.io/library/{BASE}", check=False)
    if pulled.returncode == 0:
        return BASE
    if not shutil.which("debootstrap") or os.getuid():
        reason = pulled.stdout.strip().splitlines()[-1]
        pytest.skip(f"{BASE} cannot be pulled ({reason}), and only root can make a base with debootstrap")
    root = tmp_path_factory.mktemp("debian") / "root"
    include = f"--include={','.join(DEBIAN)}"
    made = shell.run("debootstrap", "--variant=minbase", include, "bookworm", root, timeout=None)
    if made.returncode:
        pytest.skip(f"{BASE} cannot be pulled, and debootstrap failed: {made.stdout.splitlines()[-1]}")
    for path in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        path.unlink()
    # beside what pip installs, as in the real base
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    container = buildah("from", "scratch").stdout.strip()
    buildah("add", "--quiet", container, root, "/")
    buildah("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    buildah("commit", "--quiet", container, "base")
    buildah("rm", container)
    shutil.rmtree(root)
    return "localhost/base"


def pip_options(folder: Path) -> list[str]:
    """Options of a build that give it this machine's configuration of pip, with the folders that it names."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = dict(re.findall(r"^[\w:-]+?\.\.?([\w-]+)='(.*)'$", listed.stdout, re.M))
    (folder / "pip.conf").write_text("[global]\n" + "".join(f"{name} = {found[name]}\n" for name in found))
    volumes = {str(folder / "pip.conf"): "/etc/pip.conf"}
    for index, path in re.findall(r"(?:^|\s)(file://)?(/\S+)", "\n".join(found.values()), re.M):
        place = str(Path(path).parent) if index else path  # an index's files are beside its pages
        if Path(place).exists():
            volumes[place] = place
    return [f"--volume={here}:{there}:ro" for here, there in volumes.items()]


def test_the_image_plans_the_report_and_runs_a_study(buildah, base, tmp_path):
    """TORCH_OPTIONS as for `docker build` (a build of torch for processors takes a tenth of the time)."""
    torch = f"--build-arg=TORCH_OPTIONS={os.environ.get('TORCH_OPTIONS', '')}"
    own = ("--pull=never", f"--build-arg=BASE={base}", torch, *pip_options(tmp_path))
    buildah("build", *own, "--tag=trm", ROOT)
    container = buildah("from", "trm").stdout.strip()
    plan = ("run", container, "--", "python", "-m", "snakemake", "--profile", "profiles/local", "-n")
    assert "runs to train" in buildah(*plan).stdout
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(one_run(2)))
    mounted = f"--volume={tmp_path}/study.yaml:/study/config/laptop.yaml:ro"
    command = ("python", "-m", "trm", "study", "run", "--profile", "profiles/local")  # the image's own
    buildah("run", mounted, container, "--", *command)
    show = "ls results/report.html && cat results/runs/*/training.json"
    made = buildah("run", container, "--", "sh", "-c", show)
    assert "results/report.html" in made.stdout
    assert '"outcome": "finished"' in made.stdout
