"""Where files live: beside the Snakefile, or under a bucket's prefix. Rules name paths through this alone."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Place:
    """Maps `results/...` paths to local files or storage objects.

    Args:
        config: Snakemake's config; `storage_prefix` (gs://bucket/prefix) moves data sets, runs and checkpoints there.
            Tables, fits, figures and the report stay on the caller's disk.
        storage: Snakemake's `storage` object of the Snakefile.
        repeats: whether jobs run whose outputs exist (see `may_repeat`).
    """

    def __init__(self, config: dict[str, Any], storage: Any = None, repeats: bool = False):
        self._repeats = repeats
        self.prefix = str(config.get("storage_prefix") or "").rstrip("/")
        self._storage = storage
        self._listed: dict[str, set[str]] = {}

    def at(self, path: str) -> Any:
        """A file that a job reads or writes."""
        return self._storage.gcs(f"{self.prefix}/{path}") if self.prefix else path

    def uri(self, path: str) -> Any:
        """A file that a job reads by itself: in a bucket it is handed over as its gs:// URI, not brought down."""
        return self._storage.gcs(f"{self.prefix}/{path}", retrieve=False) if self.prefix else path

    def exists(self, path: str) -> bool:
        """Whether a file is there. In a bucket all files of its kind (`results/<kind>/`) are listed once.

        A bucket that does not exist yet is empty: a plan comes before it.
        """
        if not self.prefix:
            return os.path.exists(path)  # asked for every file of thousands of runs
        from trm.storage import BucketMissing, Patience, open_store

        kind = "/".join(path.split("/")[:2])
        if kind not in self._listed:
            store = open_store(self.prefix, Patience(minutes=0.5))
            try:
                self._listed[kind] = {info.name for info in store.list(f"{kind}/")}
            except BucketMissing:
                self._listed[kind] = set()
        return path in self._listed[kind]

    def all(self, paths: Iterable[str]) -> list[Any]:
        """`at` for many."""
        return [self.at(path) for path in paths]

    def needed(self, path: str, outputs: Iterable[str], *, retrieve: bool = True) -> list[Any]:
        """An input, or nothing where it is gone and all outputs that were made of it are there.

        Snakemake runs a job again whose missing input, ancient or not, is made for the sake of another job
        (9.27, `update_needrun`), though names say that the input's content is the same.

        Args:
            path: the input.
            outputs: what the job makes.
            retrieve: named as `at` does; else as `uri` does.
        """
        if not self._repeats and not self.exists(path) and all(self.exists(output) for output in outputs):
            return []
        return [self.at(path) if retrieve else self.uri(path)]

    @property
    def checkpoints(self) -> str:
        """Folder or gs:// prefix of all checkpoints; deliberately no rule's output, so that nothing deletes them."""
        return f"{self.prefix}/results/checkpoints" if self.prefix else "results/checkpoints"

    @property
    def root(self) -> str:
        """Where `at` files lie on the disk of the machine that runs a local rule."""
        if not self.prefix:
            return ""
        return ".snakemake/storage/gcs/" + self.prefix.removeprefix("gs://") + "/"


def may_repeat(snakemake: Any) -> bool:
    """Whether jobs may run whose outputs exist: --forcerun or --forceall was given, or this process runs one job.

    Args:
        snakemake: Snakemake's `workflow` object of the Snakefile.
    """
    asked = snakemake.dag_settings  # None in --lint
    return not snakemake.is_main_process or bool(asked and (asked.forcerun or asked.forceall))


def shell_prefix(config: dict[str, Any]) -> str:
    """Shell text before every rule's command: the interpreter that runs Snakemake comes first in PATH, and the devices
    that the profile asks for (`backend`, `chips_per_host`) are in the variables that `open_backend` reads. Variables,
    because they bind every command of a job, also those that take no `--backend`."""
    variables = [f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
    for key, name in (("backend", "TRM_BACKEND"), ("chips_per_host", "TRM_CHIPS_PER_HOST")):
        if config.get(key):
            variables.append(f"{name}={shlex.quote(str(config[key]))}")
    text = f"set -euo pipefail; export {' '.join(variables)}; "
    return text.replace("{", "{{").replace("}", "}}")  # Snakemake formats it
