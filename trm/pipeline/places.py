"""Where files live: beside the Snakefile, or under a bucket's prefix. Rules name paths through this alone."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trm.pipeline.workflow import Workflow


class Place:
    """Maps `results/...` paths to local files or storage objects.

    Args:
        config: Snakemake's config; `storage_prefix` (gs://bucket/prefix) moves data sets, runs and checkpoints there.
            Tables, fits, figures and the report stay on the caller's disk.
        storage: Snakemake's `storage` object of the Snakefile.
    """

    def __init__(self, config: dict[str, Any], storage: Any = None):
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
        """Whether a file is there. In a bucket all files of its kind (`results/<kind>/`) are listed once."""
        if not self.prefix:
            return Path(path).exists()
        from trm.storage import Patience, open_store

        kind = "/".join(path.split("/")[:2])
        if kind not in self._listed:
            store = open_store(self.prefix, Patience(minutes=0.5))
            self._listed[kind] = {info.name for info in store.list(f"{kind}/")}
        return path in self._listed[kind]

    def all(self, paths: Iterable[str]) -> list[Any]:
        """`at` for many."""
        return [self.at(path) for path in paths]

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


def job_environment(workflow: Workflow, place: Place) -> str:
    """Shell text that runs before every rule's command: the interpreter that runs Snakemake comes first in PATH, and
    variables hold what is no part of any result."""
    runtime = workflow.study.scale.runtime.model_dump_json(exclude_defaults=True)
    variables = {
        "TRM_CHECKPOINTS": place.checkpoints,
        "TRM_RUNTIME": runtime,
        "TRM_THREADS": str(workflow.study.scale.threads),
        "TRM_ROOT": place.root,
        "TRM_STUDY_OPTIONS": workflow.options,
    }
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    text = f"set -euo pipefail; export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH {exports}; "
    return text.replace("{", "{{").replace("}", "}}")  # Snakemake formats it
