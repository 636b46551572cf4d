"""Where files are: beside the Snakefile, or under a bucket prefix. Rules get their paths only from here."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trm.storage import SCHEMES, scheme_of


def unreadable(prefix: str) -> str:
    """Why a dry run, which waits for six seconds only, cannot list the files under a bucket prefix; empty: it can, or
    the bucket is not there yet."""
    from trm.storage import BucketMissing, Patience, StorageError, open_store

    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")  # elsewhere nobody answers for a machine's credentials
    try:
        next(iter(open_store(prefix, Patience(minutes=0.1)).list("results/preflight")), None)
    except BucketMissing:
        return ""
    except StorageError as error:
        return str(error)
    return ""


def newest_steps(names: Iterable[str]) -> dict[str, int]:
    """Run -> step of its newest complete checkpoint, by the files `results/checkpoints/<run>/step-<n>/...`."""
    steps: dict[str, int] = {}
    for name in names:
        _, _, run, *rest = name.split("/")
        if len(rest) == 2 and rest[0].startswith("step-") and rest[1] == "manifest.json":
            steps[run] = max(steps.get(run, 0), int(rest[0].removeprefix("step-")))
    return steps


class Files:
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
        self._steps: dict[str, int] | None = None

    def __call__(self, path: str, retrieve: bool | None = None) -> Any:
        """A file that a job reads or writes. `retrieve=False`: one in a bucket is passed as its address, and the job
        reads it itself."""
        return self._storage(f"{self.prefix}/{path}", retrieve=retrieve) if self.prefix else path

    def exists(self, path: str) -> bool:
        """Whether a file is there. In a bucket all files of its kind (`results/<kind>/`) are listed once.

        A bucket that does not exist yet counts as empty: plans are made before buckets.
        """
        kind = next(filter(path.startswith, self.REMOTE), "") if self.prefix else ""
        if not kind:
            return os.path.exists(path)  # asked for every file of thousands of runs
        return path in self._names(kind)

    def _names(self, kind: str) -> set[str]:
        """Files in the bucket below `results/<kind>/`."""
        from trm.storage import BucketMissing, open_store

        if self.unread:
            return set()
        if kind not in self._listed:
            store = open_store(self.prefix)
            try:
                self._listed[kind] = {info.name for info in store.list(kind)}
            except BucketMissing:
                self._listed[kind] = set()
        return self._listed[kind]

    def checkpoint(self, run: str) -> int:
        """Step of a run's newest complete checkpoint; 0: there is none."""
        if not self.prefix:
            names = [
                path.as_posix() for path in Path().glob(f"{self.checkpoints}/{run}/step-*/manifest.json")
            ]
            return newest_steps(names).get(run, 0)
        if self._steps is None:
            self._steps = newest_steps(self._names("results/checkpoints/"))
        return self._steps.get(run, 0)

    @property
    def checkpoints(self) -> str:
        """Folder or address of all checkpoints; deliberately no rule's output, so that nothing deletes them."""
        return f"{self.prefix}/results/checkpoints" if self.prefix else "results/checkpoints"

    @property
    def root(self) -> str:
        """Folder of the files on the machine that runs a local rule."""
        if not self.prefix:
            return ""
        return f".snakemake/storage/{self._provider}/{self.prefix.partition('://')[2]}/"
