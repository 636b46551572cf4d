"""The lease on a run: at most one job writes it, whatever hosts they are on.

The lease is one small object, rewritten ("renewed") every few seconds under its generation. A newcomer that
finds one watches it: if it is renewed the holder lives and the newcomer stops; if a whole term passes without
a renewal, or the holder is a dead process of this very host, the newcomer takes it over, again under its
generation, so that of two newcomers one wins. Nothing compares clocks of two machines.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import getnode, uuid4

from trm.storage.base import Conflict, ObjectInfo, ObjectMissing, StorageError, Store

TERM_VARIABLE = "TRM_LEASE_SECONDS"
TERM_SECONDS = 60.0


class LeaseHeld(StorageError):
    """Another living job holds the lease."""


class LeaseLost(StorageError):
    """Another job took the lease over: this one must stop writing."""


def _process_start(pid: int) -> str | None:
    """What tells a process from a later one with its number: clock ticks since boot; "alive" where there is
    no /proc. None: no such process."""
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
    """`name` in `store`, held for `run` (its name, for messages).

    It is renewed every `beat` seconds (default: a third of the term) and lost `term` seconds after the last
    time. `clock` (monotonic seconds) and `pause(seconds)` are parameters so that tests need no waiting. Use
    as a context manager, or `acquire`, `renew` at will, `release`.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        name: str = "lease.json",
        term: float | None = None,
        beat: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.store, self.run, self.name = store, run, name
        self.term = float(os.environ.get(TERM_VARIABLE, TERM_SECONDS)) if term is None else term
        self._interval = self.term / 3 if beat is None else beat
        self._clock, self._pause = clock, pause
        self._token = uuid4().hex
        self._generation: int | None = None
        self._beat = 0
        self._lost: LeaseLost | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.acquire()
        self.keep()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lease, waiting up to one term to learn whether a holder lives. Raises LeaseHeld."""
        while True:
            found = self.store.stat(self.name)
            if found is None:
                expected = 0
            else:
                holder = self._holder()
                if holder is None:
                    continue  # released between the two calls
                if not self._dead(holder):
                    self._watch(found)
                expected = found.generation
            try:
                with self._lock:
                    self._generation = self._write(expected)
                return
            except Conflict:
                continue  # another newcomer was quicker: look again

    def renew(self) -> None:
        """Prove to still hold the lease. Raises LeaseLost when another job took it; Unreachable as stores
        do."""
        with self._lock:
            if self._lost is not None:
                raise self._lost
            if self._generation is None:
                raise RuntimeError("the lease was never acquired")
            try:
                self._generation = self._write(self._generation)
            except Conflict as error:
                self._lost = LeaseLost(
                    f"The run {self.run} was taken over by {self._describe(self._holder())}: this job stops; "
                    "keep only one job per run."
                )
                raise self._lost from error

    def check(self) -> None:
        """Raise LeaseLost if a renewal in the background found the lease lost. Contacts nothing."""
        if self._lost is not None:
            raise self._lost

    def keep(self) -> None:
        """Renew every `beat` seconds in a background thread until `release`."""
        self._thread = threading.Thread(target=self._renew_often, name="trm-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop renewing and give the lease back, unless it was lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._generation is not None and self._lost is None:
                try:
                    self.store.delete(self.name, if_generation_match=self._generation)
                except StorageError:
                    pass  # lost or unreachable: it runs out by itself
            self._generation = None

    def _renew_often(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.renew()
            except LeaseLost:
                return
            except StorageError:
                continue  # an outage is not a loss: the next renewal tells

    def _write(self, generation: int) -> int:
        self._beat += 1
        content = {
            "run": self.run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _process_start(os.getpid()),
            "machine": _machine(),
            "token": self._token,
            "beat": self._beat,
        }
        data = json.dumps(content, sort_keys=True).encode()
        return self.store.put_bytes(self.name, data, if_generation_match=generation).generation

    def _holder(self) -> dict[str, Any] | None:
        """Content of the lease: None if there is none; {} if it cannot be read as one."""
        try:
            content = json.loads(self.store.get_bytes(self.name))
        except ObjectMissing:
            return None
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def _dead(self, holder: dict[str, Any]) -> bool:
        """Whether the holder certainly no longer runs: a process of this machine that is gone."""
        if holder.get("machine") != _machine() or not isinstance(holder.get("pid"), int):
            return False
        return _process_start(holder["pid"]) != holder.get("started")

    def _watch(self, found: ObjectInfo) -> None:
        """Return once a term went by without a renewal; raise LeaseHeld as soon as there is one."""
        until = self._clock() + self.term
        while (left := until - self._clock()) > 0:
            self._pause(min(left, self.term / 12))
            now = self.store.stat(self.name)
            if now is None:
                return
            if now.generation != found.generation:
                raise LeaseHeld(
                    f"The run {self.run} is being written by {self._describe(self._holder())}: stop it, "
                    "or wait for it to end."
                )

    @staticmethod
    def _describe(holder: dict[str, Any] | None) -> str:
        if not holder:
            return "another job"
        return f"process {holder.get('pid')} on {holder.get('host')}"
