"""The jobs' environment, through Snakemake: made once on each host from a lock file, and kept by its content."""

import contextlib
import site
import zipfile
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.study import Study


def wheel(folder: Path, answer: int) -> Path:
    """Make a wheel that brings a module, and what this Python has (Snakemake above all), without a network."""
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


@pytest.mark.full
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_environment_is_made_once_on_each_host(tmp_path):
    profile = {
        "tpu-accelerator-type": "v4-16",
        "resources": {"tpu_hosts": 2},
        "tpu-requirements": str(tmp_path / "jobs.lock"),
    }
    lock = tmp_path / "jobs.lock"
    with EmulatedPod(tmp_path / "pod", "v4-16") as pod, contextlib.ExitStack() as ending:
        pod.create()
        keys = [host.host_key for host in pod.hosts]
        one = Study(tmp_path / "one", pod, {"a": {}, "b": {}}, **profile)
        ending.callback(one.end)
        snakefile = one.folder / "Snakefile"
        option = "export COUNT_OPTION=$(python -c 'import sys, tiny; print(tiny.ANSWER, sys.prefix)'); "
        text = snakefile.read_text().replace("export COUNT_OPTION={params.job:q}; ", option)
        snakefile.write_text(text)
        lock.write_text("--no-index\nno-such-package==1\n")
        said = one.run(code=1)
        assert "No matching distribution found for no-such-package==1" in said
        assert [host.host_key for host in pod.hosts] == keys  # a wrong lock file is no reason for another pod

        lock.write_text(f"--no-index\n--find-links {tmp_path}\ntiny==42.0\n")
        wheel(tmp_path, 42)
        said = one.run()
        assert "environment on w0: Successfully installed tiny-42.0" in said
        assert "ready on 2 of 2 hosts" in said
        for job in "ab":
            answer, prefix = one.launches(job)["1-0"]["environment"]["COUNT_OPTION"].split()
            assert answer == "42"
            assert prefix.rpartition("/")[2] in said
        made = [(host.home / ".snakemake-tpu" / "environments").stat().st_mtime_ns for host in pod.hosts]

        other = Study(tmp_path / "other", pod, {"c": {}}, **profile)
        ending.callback(other.end)
        said = other.run()
        assert "Successfully installed" not in said
        assert "ready on 2 of 2 hosts" in said
        again = [(host.home / ".snakemake-tpu" / "environments").stat().st_mtime_ns for host in pod.hosts]
        assert again == made
