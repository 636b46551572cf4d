"""Where files are: beside the Snakefile, or under a bucket prefix. Rules get their paths only from here."""

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trm.pipeline.settings import Settings
from trm.storage import SCHEMES, scheme_of


def unreadable(prefix: str) -> str:
    """Why the files under a bucket prefix cannot be listed here; empty: they can, or the bucket is not there yet."""
    from trm.storage import BucketMissing, Patience, StorageError, open_store

    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")  # elsewhere nobody answers for a machine's credentials
    try:
        next(iter(open_store(prefix, Patience(minutes=0.1)).list("results/preflight")), None)
    except BucketMissing:
        return ""
    except StorageError as error:
        return str(error)
    return ""


class Place:
    """Maps `results/...` paths to local files or storage objects, and knows which exist.

    Args:
        prefix: address in a bucket (gs://..., s3://...) of data sets, runs and checkpoints; empty: this disk. Tables,
            fits, figures and the report are always on the caller's disk.
        storage: Snakemake's `storage` object; needed only to name files in rules.
        unread: why a dry run cannot ask the bucket, which then counts as empty. Its files are named by paths, since
            Snakemake's storage would need the bucket.
    """

    REMOTE = (
        "results/sources/", "results/datasets/", "results/runs/", "results/checkpoints/", "results/preflight",
    )  # fmt: skip

    def __init__(self, prefix: str = "", storage: Any = None, unread: str = ""):
        self.prefix, self.unread = prefix, unread
        self._provider = SCHEMES[scheme_of(prefix)].provider if prefix else ""
        self._storage: Any = getattr(storage, self._provider) if storage and prefix and not unread else None
        if unread:
            self._storage = lambda address, **_: address.replace("://", ":")
        self._listed: dict[str, set[str]] = {}

    def file(self, path: str) -> Any:
        """A file that a job reads or writes."""
        return self._storage(f"{self.prefix}/{path}") if self.prefix else path

    def uri(self, path: str) -> Any:
        """A file that a job reads itself: one in a bucket is passed as its address and not downloaded."""
        return self._storage(f"{self.prefix}/{path}", retrieve=False) if self.prefix else path

    def exists(self, path: str) -> bool:
        """Whether a file is there. In a bucket all files of its kind (`results/<kind>/`) are listed once.

        A bucket that does not exist yet counts as empty: plans are made before buckets.
        """
        if not self.prefix or not path.startswith(self.REMOTE):
            return os.path.exists(path)  # asked for every file of thousands of runs
        from trm.storage import BucketMissing, Patience, open_store

        kind = "/".join(path.split("/")[:2])
        if self.unread:
            return False
        if kind not in self._listed:
            store = open_store(self.prefix, Patience(minutes=0.5))
            try:
                self._listed[kind] = {info.name for info in store.list(f"{kind}/")}
            except BucketMissing:
                self._listed[kind] = set()
        return path in self._listed[kind]

    def files(self, paths: Iterable[str]) -> list[Any]:
        """`file` for many."""
        return [self.file(path) for path in paths]

    def input_unless_done(self, path: str, outputs: Iterable[str], *, retrieve: bool = True) -> list[Any]:
        """An input, or nothing if it was deleted after everything was made from it.

        Snakemake runs a finished job again if a missing input of it, ancient or not, is made for another job (9.27,
        `update_needrun`), even though the name says that the content is the same.

        Args:
            path: the input.
            outputs: what the job makes.
            retrieve: whether the job gets a local copy (`file`) or the URI (`uri`).
        """
        if not self.repeats() and not self.exists(path) and all(self.exists(output) for output in outputs):
            return []
        return [self.file(path) if retrieve else self.uri(path)]

    def repeats(self) -> bool:
        """Whether jobs run whose outputs exist; the Snakefile replaces it by `may_repeat`."""
        return False

    @property
    def checkpoints(self) -> str:
        """Folder or address of all checkpoints; deliberately no rule's output, so that nothing deletes them."""
        return f"{self.prefix}/results/checkpoints" if self.prefix else "results/checkpoints"

    @property
    def root(self) -> str:
        """Folder of `file` files on the machine that runs a local rule."""
        if not self.prefix:
            return ""
        return f".snakemake/storage/{self._provider}/{self.prefix.partition('://')[2]}/"


def may_repeat(snakemake: Any) -> bool:
    """Whether jobs may run whose outputs exist: --forcerun or --forceall was given, or this process runs one job.
    `snakemake`: Snakemake's `workflow` object of the Snakefile. Its settings are complete only after parsing."""
    asked = snakemake.dag_settings  # None in --lint
    return not snakemake.is_main_process or bool(asked and (asked.forcerun or asked.forceall))


def shell_prefix(settings: Settings) -> str:
    """Shell text before every rule's command: the interpreter that runs Snakemake comes first in PATH, and the devices
    that the profile asks for are in the variables that `open_backend` reads. Variables, because they apply to
    every command of a job, also those without `--backend`."""
    variables = [f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
    if settings.backend:
        variables.append(f"TRM_BACKEND={settings.backend}")
    if settings.chips_per_host:
        variables.append(f"TRM_CHIPS_PER_HOST={settings.chips_per_host}")
    text = f"set -euo pipefail; export {' '.join(variables)}; "
    return text.replace("{", "{{").replace("}", "}}")  # Snakemake formats it
