"""The lease on a run: at most one job writes it, on whatever host.

A lease is one small object whose holder renews it every few seconds, always on condition of its generation. A job that
finds a lease watches it. If it is renewed, the holder is alive and the new job stops. If a whole term passes without a
renewal, or the holder was a process of this host that has ended, the new job takes the lease over, again on condition
of its generation, so that of two new jobs only one wins. The clocks of two machines are never compared. (A killed
pipeline may leave its training alive: on the same disk and machine the new job waits for the old one to end.)
"""

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import getnode, uuid4

from trm.io import positive_number
from trm.storage.base import ABSENT, Conflict, ObjectInfo, ObjectMissing, StorageError, Store

NAME = "lease.json"
TERM_VARIABLE = "TRM_LEASE_SECONDS"
TERM_SECONDS = 60.0


class LeaseHeld(StorageError):
    """Another running job holds the lease."""


class LeaseLost(StorageError):
    """Another job has taken over the lease: this one must stop writing."""


def _process_start(pid: int) -> str | None:
    """What distinguishes a process from a later one with the same number: its start in clock ticks since boot, or
    "alive" where there is no /proc. None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"


def _machine() -> str:
    """Identity of this boot and process namespace, or of the host where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()}/{getnode():x}"


class Lease:
    """The right to write a run, kept in `store`.

    Use as a context manager, or call `acquire`, `keep` and `release`.

    Args:
        run: the run's name, for messages.
        term: seconds without a renewal after which others may take the lease over; by default $TRM_LEASE_SECONDS or 60.
    """

    def __init__(self, store: Store, run: str, term: float | None = None) -> None:
        self.store, self.run = store, run
        self.term = positive_number(TERM_VARIABLE, TERM_SECONDS) if term is None else term
        self._token = uuid4().hex
        self._generation: str | None = None
        self._renewals = 0
        self._lost: LeaseLost | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.acquire()
        self.keep()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def acquire(self, wait: bool = False) -> None:
        """Take the lease, waiting up to one term to see whether its holder is alive.

        `wait`: if that is a process of this machine, wait for it to end. Raises LeaseHeld.
        """
        announced = False
        while True:
            info = self.store.stat(NAME)
            if info is not None:
                holder = self._holder()
                if holder is None:
                    continue  # released between the two calls
                if self._renewed(info, holder):
                    if not wait or holder.get("machine") != _machine():
                        raise LeaseHeld(
                            f"The run {self.run} is being written by {self._describe_holder()}: stop it, "
                            "or wait for it to end."
                        )
                    if not announced:
                        other = f"process {holder['pid']} trains this run"
                        print(
                            f"{self.store.uri}: {other}; waiting for it to end", file=sys.stderr, flush=True
                        )
                    announced = True
                    continue
            try:
                with self._lock:
                    self._generation = self._write(info.generation if info else ABSENT)
                return
            except Conflict:
                continue  # another new job was faster: look again

    def renew(self) -> None:
        """Renew the lease. Raises LeaseLost if another job has taken it, Unreachable as stores do."""
        with self._lock:
            self.check()
            if self._generation is None:
                raise RuntimeError("the lease was never acquired")
            try:
                self._generation = self._write(self._generation)
            except Conflict as error:
                self._lost = LeaseLost(
                    f"The run {self.run} was taken over by {self._describe_holder()}: this job stops; "
                    "keep only one job per run."
                )
                raise self._lost from error

    def check(self) -> None:
        """Raise LeaseLost if an earlier renewal found the lease lost. Sends no request."""
        if self._lost is not None:
            raise self._lost

    def keep(self) -> None:
        """Renew three times per term in a background thread until `release`."""
        self._thread = threading.Thread(target=self._keep_renewing, name="trm-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop renewing and delete the lease, unless it was lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._generation is not None and self._lost is None:
                with suppress(StorageError):  # lost or unreachable: it expires
                    self.store.delete(NAME, generation=self._generation)
            self._generation = None

    def _keep_renewing(self) -> None:
        while not self._stop.wait(self.term / 3):
            try:
                self.renew()
            except LeaseLost:
                return
            except StorageError:
                continue  # an outage is not a loss: the next renewal will tell

    def _write(self, generation: str) -> str:
        self._renewals += 1
        content = {
            "run": self.run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _process_start(os.getpid()),
            "machine": _machine(),
            "token": self._token,
            "beat": self._renewals,
        }
        data = json.dumps(content, sort_keys=True).encode()
        return self.store.put_bytes(NAME, data, generation=generation).generation

    def _holder(self) -> dict[str, Any] | None:
        """Content of the lease: None if it does not exist, {} if it cannot be parsed."""
        try:
            content = json.loads(self.store.get_bytes(NAME))
        except ObjectMissing:
            return None
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def _renewed(self, seen: ObjectInfo, holder: dict[str, Any]) -> bool:
        """Watch the lease until it is renewed: True; or until a term passes, it is released or its holder ends."""
        deadline = time.monotonic() + self.term
        while not _has_ended(holder) and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, self.term / 12))
            now = self.store.stat(NAME)
            if now is None or now.generation != seen.generation:
                return now is not None
        return False

    def _describe_holder(self) -> str:
        holder = self._holder()
        return f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another job"


def _has_ended(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that has certainly ended."""
    if holder.get("machine") != _machine() or not isinstance(holder.get("pid"), int):
        return False
    return _process_start(holder["pid"]) != holder.get("started")
