"""The jobs' environment: built by uv on hosts with Python 3.10, once for each lock file."""

import asyncio
import contextlib
import site
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from calls import Controller
from study import Study

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.worker.loop import Builder


def make_wheel(folder: Path, answer: int) -> Path:
    """Make a wheel of a module that also makes this Python's packages, such as Snakemake, available."""
    path = folder / f"tiny-{answer}.0-py3-none-any.whl"
    packages = "".join(f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages())
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny.py", f"ANSWER = {answer}\n")
        file.writestr("these.pth", packages)
        file.writestr(
            f"tiny-{answer}.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {answer}.0\n"
        )
        file.writestr(
            f"tiny-{answer}.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"tiny-{answer}.0.dist-info/RECORD", "")
    return path


ROOT = Path(__file__).parents[2]
PROFILE = {"tpu-accelerator-type": "v4-16", "resources": {"tpu_hosts": 2}}
pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]


@pytest.fixture
def making(tmp_path):
    """Return a function that starts a pod of two hosts and returns it with a function that makes studies."""
    with contextlib.ExitStack() as ending:

        def make(wheels: Path | None):
            pod = ending.enter_context(EmulatedPod(tmp_path / "pod", "v4-16", wheels=wheels))

            def study(name: str, jobs: dict, **profile) -> Study:
                profile = {**PROFILE, "tpu-requirements": str(tmp_path / "jobs.lock"), **profile}
                one = Study(tmp_path / name, pod, jobs, **profile)
                ending.callback(one.end)
                snakefile = one.folder / "Snakefile"
                program = "import sys, tiny; print(tiny.ANSWER, *sys.version_info[:2])"
                option = f"export COUNT_OPTION=$(python -c '{program}'); "
                text = snakefile.read_text().replace("export COUNT_OPTION={params.job:q}; ", option)
                snakefile.write_text(text)
                return one

            return pod, study

        yield make


def test_environment_is_made_once_on_each_host(making, tmp_path):
    pod, study = making(tmp_path)
    lock = tmp_path / "jobs.lock"
    one = study("one", {"a": {}, "b": {}})
    lock.write_text(f"--no-index\n--find-links {tmp_path}\nno-such-package==1\n")
    output = one.run(code=1)
    assert "no-such-package was not found" in output, output
    assert pod.api.created_nodes == 1  # a wrong lock file is no reason for another pod
    assert one.command("status")[0] == 0

    lock.write_text(f"--no-index\n--find-links {tmp_path}\ntiny==42.0\n")
    make_wheel(tmp_path, 42)
    output = one.run()
    assert "2 of 2 host(s) answer, the environment is ready on 2" in output
    logs = [(host.home / ".snakemake-tpu" / "environment.log") for host in pod.hosts]
    assert all("Installed 1 package" in log.read_text() for log in logs)
    for job in "ab":
        assert one.launches(job)["1-0"]["environment"]["COUNT_OPTION"] == "42 3 11"
    made = [(host.home / ".snakemake-tpu" / "environments").stat().st_mtime_ns for host in pod.hosts]

    other = study("other", {"c": {}})
    output = other.run()
    assert "the environment is ready on 2" in output
    again = [(host.home / ".snakemake-tpu" / "environments").stat().st_mtime_ns for host in pod.hosts]
    assert again == made


def test_a_build_that_fails_is_not_blamed_on_the_lock_file_that_replaced_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_HOST_ROOT", str(tmp_path))
    locks = {"old": b"--no-index\nno-such-package==1\n", "new": b"--no-index\n"}
    bucket = SimpleNamespace(content=lambda kind, name: locks[name])
    builder = Builder()
    for name in locks:  # the new one comes while the old one is being built
        builder.step({"name": name, "lock": name, "python": "3.11"}, bucket)
    first = builder.process
    assert first.wait() != 0
    builder.step({"name": "new", "lock": "new", "python": "3.11"}, bucket)
    assert builder.about()["state"] == "building"
    assert builder.process is not first
    builder.end()
    builder.process.wait()


async def test_a_minute_without_a_package_index_is_waited_for_once_a_slice_was_up(making, tmp_path):
    pod, _ = making(tmp_path)
    lock, wheel = tmp_path / "jobs.lock", make_wheel(tmp_path, 42)
    lock.write_text(f"--no-index\n--find-links {tmp_path}\ntiny==42.0\n")
    async with Controller(pod, tmp_path / "call", requirements=str(lock)) as controller:
        work = "test $TPU_LAUNCH = 1 && sleep 600; $TPU_PYTHON -c 'import tiny'"
        running = asyncio.ensure_future(controller.run("job", work))
        while not any("worker.runner" in line for line in pod.jobs().values()):
            await asyncio.sleep(0.1)
        away = wheel.rename(tmp_path / "away")
        pod.preempt()
        while "cannot make the jobs' environment and tries again; jobs wait" not in controller.output:
            await asyncio.sleep(0.1)
        away.rename(wheel)
        outcome = await running
        assert outcome.ok, outcome.message
        assert controller.output.count("launching it again") == 1


def test_the_lock_file_resolves_for_the_hosts(tmp_path):
    """Python 3.11 on x86-64 with the image's glibc 2.35; one pure package has no wheel. Needs a package index."""
    target = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_35"]
    wheels = ["--only-binary", ":all:", "--no-binary", "connection-pool", "--target", str(tmp_path)]
    locks = [
        word for name in ("requirements", "wandb") for word in ("-r", str(ROOT / f"envs/tpu/{name}.lock"))
    ]
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--dry-run", *target, *wheels, *locks],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "error sending request" in done.stderr or "Could not connect" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    assert " + torch-xla==" in done.stderr
    assert " + wandb==" in done.stderr
