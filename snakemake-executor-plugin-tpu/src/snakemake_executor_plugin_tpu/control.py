"""The controller's side of one slice: its lease, its hosts' heartbeats and their assignments, all of them objects."""

import getpass
import gzip
import io
import os
import socket
import tarfile
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .errors import PodError
from .worker.bucket import Bucket, Cell, Document, Forged, Lost, verify
from .worker.files import LEAST_DISK

PACKAGE = Path(__file__).parent
HOST_PACKAGE = "tpu_host"
READERS = 8
NOBODY = "nobody"


class Taken(PodError):
    """Another controller has the pod."""


def pack(files: Mapping[str, Path]) -> bytes:
    """Return an archive whose bytes depend only on names, contents and the executable bit."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_000_000_000
            info.mode = 0o700 if path.stat().st_mode & 0o100 else 0o600
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), compresslevel=3, mtime=0)


def host_code() -> bytes:
    """Return the archive of what runs on a host: a package of its own name, as Snakemake must not find the plugin."""
    files = {f"{HOST_PACKAGE}/worker/{path.name}": path for path in (PACKAGE / "worker").glob("*.py")}
    files[f"{HOST_PACKAGE}/__init__.py"] = PACKAGE / "worker" / "__init__.py"
    return pack({**files, f"{HOST_PACKAGE}/storage.py": PACKAGE / "storage.py"})


class Control:
    """One incarnation of a slice under one controller.

    `setup` is what every assignment says: the node it is for, the loop's code, the jobs' environment. The methods call
    the bucket and block as long as its patience; `hear` and `renew` are called from one thread at a time.
    """

    def __init__(
        self, bucket: Bucket, hosts: int, setup: Document, times: Mapping[str, float], call: str = ""
    ) -> None:
        self.bucket, self.hosts, self.setup, self.times = bucket, hosts, setup, times
        self.id = call or uuid.uuid4().hex
        self.who = f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()} in {os.getcwd()})"
        self.beats: dict[int, Document] = {}
        self._assigned: dict[int, Cell] = {}
        self._readers = ThreadPoolExecutor(READERS, "tpu-beats")
        # A renewal may still be on its way, or begin, in a thread of its own when the lease is released.
        self._lease_lock, self._released = threading.Lock(), False

    # ---- one controller at a time

    def acquire(self) -> None:
        """Take the pod, from a controller that has ended without a word once its lease has not been renewed for long.

        Raises Taken if another controller renews its lease.
        """
        seen = 0
        while True:
            try:
                self._lease = Cell(self.bucket, "controller", {"who": NOBODY, "by": ""})
            except Forged as error:
                raise PodError(f"{error}. Delete {self.bucket.url}/controller.") from None
            who, age = self._lease.document["who"], self._lease.age
            if who == NOBODY or self._lease.document["by"] == self.id or age > self.times["silence"]:
                break
            if (self._lease.generation != seen and seen) or self.bucket.stop.is_set():
                raise Taken(f"The pod is in use by the Snakemake of {who}, heard {age:.0f} s ago.")
            if not seen:
                self.bucket.tell(
                    f"the Snakemake of {who} was heard {age:.0f} s ago: waiting whether it lives"
                )
            seen = self._lease.generation
            self.bucket.stop.wait(self.times["poll"])
        self.renew(busy=True)
        # An earlier controller may wake up: after these writes its own assignments fail.
        for rank in range(self.hosts):
            while not self._take(rank):
                pass

    def _take(self, rank: int) -> bool:
        """Write a host's assignment anew; return False if an earlier write of this call has just come between."""
        cell = self._assigned[rank] = Cell(self.bucket, f"hosts/{rank}/assignment", {"seq": 0, "node": ""})
        same = cell.document["node"] == self.setup["node"]
        try:
            self.assign(rank, cell.document if same else {"job": None, "launch": 0})
        except Taken:
            found = self.bucket.read(cell.name)
            if not found or found["by"] != self.id:
                raise
            return False
        return True

    def write(self, cell: Cell, document: Document) -> None:
        """Write one of this controller's documents. Raises Taken if another controller has written it."""
        try:
            cell.write({**document, "by": self.id})
        except Lost:
            raise Taken(f"Another controller has taken the pod: it has written {cell.name}.") from None

    def renew(self, busy: bool) -> None:
        """Write the lease; `busy` keeps the pod alive while it is fresh."""
        with self._lease_lock:
            if not self._released:
                self.write(self._lease, {"who": self.who, "busy": busy})
        self.renewed_at = time.monotonic()

    def release(self) -> None:
        """Let the next controller in at once."""
        with self._lease_lock:
            self._released = True
            self.write(self._lease, {"who": NOBODY, "busy": False})

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    # ---- hosts

    def tick(self, busy: bool) -> None:
        """Renew the lease if it is time, and read every heartbeat."""
        if time.monotonic() - self.renewed_at > self.times["beat"]:
            self.renew(busy)
        self.hear()

    def hear(self) -> None:
        found = dict(enumerate(self._readers.map(self._beat, range(self.hosts))))
        self.beats = {
            rank: beat for rank, beat in found.items() if beat and beat["node"] == self.setup["node"]
        }

    def _beat(self, rank: int) -> "Document | None":
        found = self.bucket.get(f"hosts/{rank}/beat")
        if found is None:
            return None
        try:
            return {**verify(self.bucket.key, f"hosts/{rank}/beat", found.data), "age": found.age}
        except Forged:
            return None  # as if the host were silent

    def is_fresh(self, rank: int) -> bool:
        return rank in self.beats and self.beats[rank]["age"] < self.times["silence"]

    def free(self) -> list[int]:
        """Return the hosts that can take a job now."""
        return [rank for rank in range(self.hosts) if self.is_fresh(rank) and self._can_take(rank)]

    def _can_take(self, rank: int) -> bool:
        beat, wanted = self.beats[rank], self.setup["setup"]["name"]
        if beat["job"] or beat["shutdown"] or beat["seen"] != self._assigned[rank].document["seq"]:
            return False
        made = beat["environment"]
        return (made["name"], made["state"]) == (wanted, "ready") and beat["disk_free"] >= LEAST_DISK

    # ---- assignments

    def assign(self, rank: int, document: Document) -> None:
        """Give a host what it has to run."""
        cell = self._assigned[rank]
        self.write(cell, {**document, **self.setup, "seq": cell.document["seq"] + 1})

    def is_assigned(self, rank: int, job: str, launch: int) -> bool:
        document = self._assigned[rank].document
        return (document.get("job"), document.get("launch")) == (job, launch)

    def may_run_on(self, rank: int) -> bool:
        """Whether what a host ran at its last heartbeat may still run: the fence stops it, with the job's grace.

        The silence covers how long after a heartbeat the fence is touched, and how late the runner looks at it.
        """
        beat, grace = self.beats.get(rank), self._assigned[rank].document.get("grace", 0)
        return not beat or beat["age"] <= self.times["fence"] + self.times["silence"] + grace

    def record(self, job: str) -> Cell:
        """Return the record of a job, which only this controller writes."""
        return Cell(self.bucket, f"jobs/{job}/record", {})
