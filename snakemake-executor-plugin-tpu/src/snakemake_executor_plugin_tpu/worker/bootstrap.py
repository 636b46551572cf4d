#!/usr/bin/env python3
"""The startup script of a pod's hosts: it fetches the loop, which the metadata names by its hash, and keeps it running.

It prints to the serial console until the loop is there. Standard library only, one file, for Python 3.10.
"""

import fcntl
import hashlib
import io
import json
import os
import pwd
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

USER, GROUPS = "snakemake", ("docker", "render", "video")
PAUSE = 2.0


def metadata(path: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(f"http://{host}/computeMetadata/v1/instance/{path}")
    request.add_header("Metadata-Flavor", "Google")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def tried(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the function returns; until it succeeds say why it does not."""
    while True:
        try:
            return function(*arguments)
        except Exception as error:
            print(f"snakemake-tpu: {what}: {type(error).__name__}: {error}; trying again", flush=True)
            time.sleep(PAUSE)


def orders_of_host() -> "dict[str, Any]":
    orders = json.loads(metadata("attributes/snakemake-tpu"))
    rank = int(metadata("attributes/agent-worker-number"))
    addresses = re.findall(r"\d+(?:\.\d+){3}", metadata("attributes/worker-network-endpoints"))
    return {**orders, "rank": rank, "address": addresses[rank], "boot": uuid.uuid4().hex}


def fetch(orders: "dict[str, Any]", folder: Path) -> None:
    """Unpack the code of the loop, unless it is there."""
    if folder.exists():
        return
    bucket, _, prefix = orders["bucket"].removeprefix("gs://").partition("/")
    name = urllib.parse.quote(f"{prefix}/code/{folder.name}", safe="")
    api = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
    request = urllib.request.Request(f"{api}/storage/v1/b/{bucket}/o/{name}?alt=media")
    token = json.loads(metadata("service-accounts/default/token"))["access_token"]
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != folder.name:
        raise ValueError(f"the code in {orders['bucket']} is not what its name says")
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(f"{made}/code")
        os.rename(f"{made}/code", folder)


def drop_to_user() -> Path:
    """Go on as a user without rights, who is made if absent; return the home folder."""
    if os.getuid() or "GCE_METADATA_HOST" in os.environ:  # an emulated host
        return Path.home()
    if subprocess.run(["id", USER], capture_output=True).returncode:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
    for group in GROUPS:  # those that the image has
        subprocess.run(["usermod", "--append", "--groups", group, USER], capture_output=True)
    user = pwd.getpwnam(USER)
    os.initgroups(USER, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=USER, LOGNAME=USER)
    return Path(user.pw_dir)


def keep_running(orders: "dict[str, Any]", home: Path) -> None:
    """Run the loop, again whenever it ends; it names another version in the file `wanted`."""
    written: dict[str, Any] = {}
    while True:
        if (home / "wanted").exists():
            orders["code"] = (home / "wanted").read_text()
            (home / "wanted").unlink()
        folder = home / "code" / orders["code"]
        tried("the code of the loop", fetch, orders, folder)
        if written != orders:  # on a full disk it may fail
            tried("the orders of the host", (home / "orders.json").write_text, json.dumps(orders))
            written = {**orders}
        os.environ["PYTHONPATH"] = str(folder)
        subprocess.run([sys.executable, "-m", "tpu_host.worker.loop"], cwd=home)
        time.sleep(PAUSE / 2)


def main() -> None:
    orders = tried("the metadata of the node", orders_of_host)
    home = tried(f"the user {USER}", drop_to_user) / ".snakemake-tpu"
    os.umask(0o077)
    os.chdir(home.parent)
    (home / "code").mkdir(parents=True, exist_ok=True)
    alone = os.open(
        home / "startup.lock", os.O_CREAT | os.O_RDWR
    )  # until this process and its child have ended
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(
            f"snakemake-tpu: host {orders['rank']} has its loop already; its log is {home}/host.log",
            flush=True,
        )
        return
    tried("the code of the loop", fetch, orders, home / "code" / orders["code"])
    print(f"snakemake-tpu: host {orders['rank']} starts its loop; its log is {home}/host.log", flush=True)
    if os.fork():
        return  # the startup script has to end, and its runner waits for everyone with its output
    os.setsid()
    with open(home / "host.log", "ab") as log, open(os.devnull, "rb") as nothing:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)
    keep_running(orders, home)


if __name__ == "__main__":
    main()
