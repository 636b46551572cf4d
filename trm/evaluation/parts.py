"""Results of the finished batches of an evaluation, kept while it runs: it stops at its time limit or on a signal, and
the same command goes on with the next batch. The whole is bit for bit that of an evaluation in one go."""

import io
import logging
import pickle
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from trm.storage.base import Store
from trm.training.interrupt import EXIT_UNFINISHED, Signals, StopRequested

log = logging.getLogger("trm")
SAVE_SECONDS = 60.0
"""Between two writes."""
Result = dict[str, Tensor]
"""Of a batch, by name: sums, whose names begin with `+`, and values of each row."""
Fetch = Callable[[Result], Result]
"""Copies a result to the host: `Backend.fetch_all`."""


def join(parts: list[Result]) -> Result:
    """The result of all batches of some work: sums are added, rows follow one another."""
    return {
        key: sum((part[key] for part in parts[1:]), parts[0][key])
        if key.startswith("+")
        else torch.cat([part[key] for part in parts])
        for key in parts[0]
    }


def to_host(result: Result) -> Result:
    """The result of a device that needs no program for it."""
    return {name: value.cpu() for name, value in result.items()}


def compute(
    name: str, batches: Iterable[slice], one: Callable[[slice], Result], fetch: Fetch = to_host
) -> Result:
    """The result of the work `name`, batch by batch, on the host; nothing is kept. Without a batch: zeros."""
    results = [fetch(one(part)) for part in batches]
    return join(results) if results else {k: torch.zeros_like(v) for k, v in fetch(one(slice(0, 1))).items()}


class Parts:
    """Keeps the results of batches in a folder or a bucket.

    Args:
        store: holds nothing else.
        end: when this process stops, of `time.monotonic`, but not before its first batch; None: no limit.
    """

    def __init__(self, store: Store, end: float | None = None):
        self._store, self._end, self._identity = store, end, ""
        self._fetch: Fetch = to_host
        self._saved_at, self._fresh = time.monotonic(), dict[str, Result]()
        self._known: dict[str, Result] = {}
        self.signals = Signals()
        """A context in which SIGTERM and Ctrl-C end the batch that is computed."""
        self.done = 0
        """Batches of this process."""

    def open(self, identity: str, fetch: Fetch = to_host) -> None:
        """Read what is kept. `identity`: of weights, data, evaluation and device; results of another one are left."""
        self._identity, self._fetch = identity, fetch
        for info in list(self._store.list()):
            content = io.BytesIO(self._store.get_bytes(info.name))
            try:
                kept = torch.load(content, weights_only=True)
            except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
                log.warning("%s cannot be read: its batches are computed again", info.name)
                continue
            if kept.pop("identity", "") == identity:
                self._known |= kept

    def compute(self, name: str, batches: Iterable[slice], one: Callable[[slice], Result]) -> Result:
        """As the function of this name, with what is kept. Raises StopRequested at the time limit or on a signal."""
        results = []
        for part in batches:
            key = f"{name} {part.start}:{part.stop}"
            if key not in self._known:
                with self.signals.abandonable():
                    self._known[key] = self._fresh[key] = self._fetch(one(part))
                self.done += 1
                self._after()
            results.append(self._known[key])
        return join(results)

    def _after(self) -> None:
        if self._end is not None and time.monotonic() >= self._end:
            self.signals.stop = self.signals.stop or EXIT_UNFINISHED
        if self.signals.stop:
            raise StopRequested
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> int:
        """Write what is not written yet. Returns the exit code of the stop that was requested, else 0."""
        if self._fresh:
            content = io.BytesIO()
            torch.save({"identity": self._identity, **self._fresh}, content)
            number = len(list(self._store.list()))
            self._store.put_bytes(f"part-{number:05}.pt", content.getvalue())
            self._fresh, self._saved_at = {}, time.monotonic()
        return self.signals.stop

    def remove(self) -> None:
        """Remove all of them, once the whole is written."""
        for info in list(self._store.list()):
            self._store.delete(info.name)
