"""Provenance of a result: commit, versions, machine, times. Imports only the standard library."""

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

CODE = ("trm", "snakemake-executor-plugin-tpu", "envs", "workflow", "Snakefile")
"""What runs: a study's settings are in the identity of each of its runs, so an edited study leaves no doubt."""
PACKAGES = ("trm-scaling", "torch", "torch_xla", "triton", "numpy", "safetensors", "snakemake")


def now() -> str:
    """Current UTC time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> tuple[str | None, bool | None]:
    """Commit of this project's repository, and whether tracked files of `CODE` differ from it.

    If the project is not the root of a repository, what $TRM_COMMIT says: the hosts of a pod have sources alone. An
    archive unpacked inside another repository must not report that repository's commit: then (None, None).
    """
    told = os.environ.get("TRM_COMMIT", "")
    elsewhere = (told.rstrip("+"), told.endswith("+")) if told else (None, None)

    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return elsewhere
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
        return git("rev-parse", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return elsewhere


loaded_commit = cache(commit)
"""`commit` as of the first call: that of the code which this process has imported, whatever is edited later."""


def commit_in_words() -> str:
    """`commit` as $TRM_COMMIT has it: with + for local changes, empty if there is none."""
    sha, dirty = commit()
    return f"{sha or ''}{'+' * bool(dirty)}"


def processor() -> tuple[str, frozenset[str]]:
    """Name of this machine's processor, and its features if Linux lists them."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        first = ""
    pairs = (line.partition(":") for line in first.split("\n"))
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, frozenset(fields.get("flags", "").split())


def versions() -> dict[str, str]:
    """Versions of the installed packages that a result depends on."""
    installed = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def provenance(started: str | None = None) -> dict[str, Any]:
    """The record stored with every result; `started`: `now` when the work began, which also asked `loaded_commit`."""
    sha, dirty = loaded_commit()
    return {
        "commit": sha,
        "dirty": dirty,
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "started": started,
        "finished": now(),
    }
