"""The jobs' environment, through Snakemake: made once on each host from a lock file, and kept by its content."""

import site
import zipfile
from pathlib import Path


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


def test_environment_is_made_once_on_each_host(study, tmp_path):
    one = study({"a": {}, "b": {}}, **{"tpu-requirements": "jobs.lock"})
    lock, snakefile = one.folder / "jobs.lock", one.folder / "Snakefile"
    snakefile.write_text(
        snakefile.read_text().replace(
            "export COUNT_OPTION={params.job:q}; ",
            "export COUNT_OPTION=$(python -c 'import sys, tiny; print(tiny.ANSWER, sys.prefix)'); ",
        )
    )
    keys = [host.host_key for host in one.pod.hosts]
    lock.write_text("--no-index\nno-such-package==1\n")
    said = one.run(code=1)
    assert "No matching distribution found for no-such-package==1" in said
    assert [host.host_key for host in one.pod.hosts] == keys  # a wrong lock file is no reason for another pod

    lock.write_text(f"--no-index\n--find-links {tmp_path}\ntiny==1.0\n")
    wheel(tmp_path, 1)
    said = one.run()
    assert "Successfully installed tiny-1.0" in said
    assert "ready on 4 of 4 hosts" in said
    seen = {one.launches(job)["1-0"]["environment"]["COUNT_OPTION"] for job in ("a", "b")}
    (first,) = {option.partition(" ")[2].rpartition("/")[2] for option in seen}
    assert all(option.startswith("1 ") for option in seen)

    again = study({"c": {}}, **{"tpu-requirements": str(lock)})
    said = again.run()
    assert "Successfully installed" not in said
    assert "ready on 4 of 4 hosts" in said

    wheel(tmp_path, 2)
    lock.write_text(f"--no-index\n--find-links {tmp_path}\ntiny==2.0\n")
    (one.folder / "results" / "table.txt").unlink()
    one.run("--forcerun", "count")
    option = one.launches("a")["2-0"]["environment"]["COUNT_OPTION"]
    assert option.startswith("2 ")
    assert not option.endswith(first)
