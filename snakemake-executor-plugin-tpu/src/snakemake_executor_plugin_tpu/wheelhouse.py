"""Fills a folder in Cloud Storage with uv, an interpreter and wheels for hosts without a package index."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from .errors import PodError
from .google import load
from .worker.environment import UV

# tpu-ubuntu2204-base has glibc 2.35, which runs programs built for older versions.
GLIBC = (35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + [
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
]


def build(lock: Path, version: str, url: str, say: Callable[[str], None]) -> None:
    """Download the packages of a lock file for the hosts, and upload them to `url`, gs://BUCKET/FOLDER."""
    if not re.fullmatch(r"gs://[^/]+/.+", url):
        raise PodError(f"{url!r} is not a folder in Cloud Storage: set tpu-wheelhouse to gs://BUCKET/FOLDER.")
    if not re.fullmatch(r"3\.\d+", version):
        raise PodError(f"tpu-environment-python is {version!r}: a wheelhouse needs a version, such as 3.11.")
    with tempfile.TemporaryDirectory(prefix="wheelhouse-") as place:
        folder = Path(place)
        download_wheels(lock, version, folder, say)
        download_python(version, folder, say)
        upload(folder, url, say)


def download_wheels(lock: Path, version: str, folder: Path, say: Callable[[str], None]) -> None:
    """Download the wheels; a package without one for the platform is built here, if its wheel is pure Python."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{lock.read_text()}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    target = ["--implementation", "cp", "--python-version", version]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), *target]
    say(f"Downloading the packages of {lock} for Python {version}")
    built: set[str] = set()
    while (done := _call([*pip, "download", *options, "-r", str(requirements)])).returncode:
        missing = re.search(r"No matching distribution found for ([A-Za-z0-9._-]+)==([^\s;]+)", done.stderr)
        if not missing or missing[1] in built:
            raise PodError(f"The packages of {lock} cannot be downloaded:\n{done.stderr.strip()[-1000:]}")
        built.add(missing[1])
        say(f"Building {missing[1]}, which has no wheel")
        made = _call(
            [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), "==".join(missing.groups())]
        )
        if made.returncode or not list(folder.glob("*-none-any.whl")):
            raise PodError(f"{missing[1]} has no wheel for the hosts:\n{made.stderr.strip()[-1000:]}")
        lines = re.sub(rf"(?m)^{re.escape(missing[1])}==(?:.*\\\n)*.*\n", "", requirements.read_text())
        requirements.write_text(lines)
    done = _call([*pip, "download", *options, f"uv=={UV}"])
    if done.returncode:
        raise PodError(f"uv cannot be downloaded:\n{done.stderr.strip()[-1000:]}")
    requirements.unlink()


def download_python(version: str, folder: Path, say: Callable[[str], None]) -> None:
    """Download the interpreter that uv would install."""
    try:
        from uv import find_uv_bin
    except ImportError:
        raise PodError("The wheelhouse needs uv: run `pip install uv`.") from None
    asked = [find_uv_bin(), "python", "list", version, "--only-downloads", "--all-platforms", "--show-urls"]
    done = _call([*asked, "--output-format", "json"])
    if done.returncode:
        raise PodError(f"uv does not list its interpreters: {done.stderr.strip()[-500:]}")
    urls = [
        item["url"]
        for item in json.loads(done.stdout)
        if re.fullmatch(rf"cpython-{re.escape(version)}\..*-linux-x86_64-gnu", item["key"])
        and item["variant"] == "default"
    ]
    if not urls:
        raise PodError(
            f"uv has no Python {version} for the hosts: set tpu-environment-python to one that it has."
        )
    say(f"Downloading {urls[0]}")
    name = urls[0].rpartition("/")[2].replace("%2B", "+")
    with urllib.request.urlopen(urls[0], timeout=300) as answer, open(folder / name, "wb") as file:
        shutil.copyfileobj(answer, file)


def upload(folder: Path, url: str, say: Callable[[str], None]) -> None:
    """Synchronise the bucket's folder with these files; what is there is not sent again."""
    name, _, prefix = url.removeprefix("gs://").rstrip("/").partition("/")
    client = load("google.cloud.storage").Client()
    bucket = client.bucket(name)
    there = {blob.name: blob for blob in client.list_blobs(name, prefix=f"{prefix}/")}
    files = sorted(folder.iterdir())
    for number, path in enumerate(files, 1):
        blob = there.pop(f"{prefix}/{path.name}", None)
        if blob is None or blob.size != path.stat().st_size:
            size = path.stat().st_size >> 20
            say(f"[{number} of {len(files)}] {path.name}, {size} MB, to {url}")
            bucket.blob(f"{prefix}/{path.name}").upload_from_filename(str(path), timeout=600)
    for blob in there.values():
        blob.delete()


def _call(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, errors="replace")
