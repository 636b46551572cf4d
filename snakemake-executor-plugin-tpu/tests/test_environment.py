"""The jobs' environment: built by uv on hosts with Python 3.10, once for each lock file."""

import asyncio
import site
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from calls import Controller, eventually
from study import Study

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.worker.environment import UV
from snakemake_executor_plugin_tpu.worker.loop import Builder

ROOT = Path(__file__).parents[2]
PYTHON = "{}.{}".format(*sys.version_info)
"""The only one that hosts can download here; by default they ask for 3.11."""
pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return the wheel of a module that also makes this Python's packages, such as Snakemake, available."""
    path = tmp_path_factory.mktemp("wheels") / "tiny-42.0-py3-none-any.whl"
    info = "tiny-42.0.dist-info"
    files = {
        "tiny.py": "ANSWER = 42\n",
        "these.pth": "".join(
            f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages()
        ),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 42.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def lock(wheel) -> Path:
    """Return a lock file of that wheel."""
    path = wheel.with_name("jobs.lock")
    path.write_text(f"--no-index\n--find-links {wheel.parent}\ntiny==42.0\n")
    return path


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """Return the servers of a pod of two hosts with a package index that has uv alone."""
    with EmulatedPod(tmp_path_factory.mktemp("pod"), "v4-16", internet=True) as pod:
        yield pod


def test_environment_is_made_once_on_each_host(empty_pod, lock, tmp_path):
    profile = {"tpu-accelerator-type": "v4-16", "resources": {"tpu_hosts": 2}, "tpu-requirements": str(lock)}
    profile["tpu-environment-python"] = PYTHON
    study = Study(tmp_path / "study", empty_pod, {"a": {}, "b": {}}, **profile)
    snakefile, program = (
        study.folder / "Snakefile",
        "import sys, tiny; print(tiny.ANSWER, *sys.version_info[:2])",
    )
    said = f"export COUNT_OPTION=$(python -c '{program}'); "
    snakefile.write_text(snakefile.read_text().replace("export COUNT_OPTION={params.job:q}; ", said))
    made = [host.home / ".snakemake-tpu" / "environments" for host in empty_pod.hosts]
    try:
        assert "2 of 2 host(s) answer, the environment is ready on 2" in study.run()
        assert all("Installed 1 package" in (path.parent / "environment.log").read_text() for path in made)
        for job in "ab":
            assert (
                study.launches(job)["1-0"]["environment"]["COUNT_OPTION"] == f"42 {PYTHON.replace('.', ' ')}"
            )
        times = [path.stat().st_mtime_ns for path in made]
        study.run("--forceall")
        assert [path.stat().st_mtime_ns for path in made] == times
    finally:
        study.end()


def test_a_build_that_fails_is_not_blamed_on_the_lock_file_that_replaced_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_HOST_ROOT", str(tmp_path))
    (tmp_path / f"uv-{UV}" / "bin").mkdir(parents=True)
    (tmp_path / f"uv-{UV}" / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    locks = {"old": b"--no-index\nno-such-package==1\n", "new": b"--no-index\n"}
    bucket = SimpleNamespace(content=lambda kind, name: locks[name])
    builder = Builder()
    for name in locks:  # the new one comes while the old one is being built
        builder.step({"name": name, "lock": name, "python": sys.executable}, bucket)
    first = builder.process
    assert first.wait() != 0
    builder.step({"name": "new", "lock": "new", "python": sys.executable}, bucket)
    assert builder.about()["state"] == "building"
    assert builder.process is not first
    builder.end()
    builder.process.wait()


async def test_a_minute_without_a_package_index_is_waited_for_once_a_slice_was_up(
    empty_pod, lock, wheel, tmp_path
):
    async with Controller(
        empty_pod, tmp_path / "call", requirements=str(lock), environment_python=PYTHON
    ) as controller:
        work = "test $TPU_LAUNCH = 1 && sleep 600; $TPU_PYTHON -c 'import tiny'"
        running = asyncio.ensure_future(controller.run("job", work))
        await eventually(lambda: any("worker.runner" in line for line in empty_pod.jobs().values()))
        away = wheel.rename(tmp_path / "away")
        empty_pod.preempt()
        said = "cannot make the jobs' environment and tries again; jobs wait"
        await eventually(lambda: said in controller.output)
        away.rename(wheel)
        outcome = await running
        assert outcome.ok, outcome.message
        assert controller.output.count("launching it again") == 1


def test_the_lock_file_resolves_for_the_hosts(tmp_path):
    """Python 3.11 on x86-64 with the image's glibc 2.35; one pure package has no wheel. Needs a package index."""
    target = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_35"]
    wheels = ["--only-binary", ":all:", "--no-binary", "connection-pool", "--target", str(tmp_path)]
    locks = [f"--requirements={ROOT}/envs/tpu/{name}.lock" for name in ("requirements", "wandb")]
    install = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", *target, *wheels, *locks]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300)
    if "error sending request" in done.stderr or "Could not connect" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    assert " + torch-xla==" in done.stderr
    assert " + wandb==" in done.stderr
