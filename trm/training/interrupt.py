"""Signals: SIGTERM and Ctrl-C stop a run after a checkpoint, SIGUSR1 requests the backend's diagnostics."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

EXIT_TERMINATED = 143
EXIT_INTERRUPTED = 130
EXIT_UNFINISHED = 75  # out of time: start the run again to continue (EX_TEMPFAIL of sysexits.h)


class StopRequested(Exception):
    """Raised inside work that may be abandoned."""


class Signals:
    """Remembers signals; a context manager for the main thread. Inside `abandonable`, a stop request aborts at once.

    A step can take minutes on a slow machine, while a stopped job has seconds to write its checkpoint. So work that has
    not changed any state yet is abandoned.
    """

    def __init__(self) -> None:
        self.stop = 0
        """The exit code of a requested stop; 0: none."""
        self._report = self._abandonable = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._report = True
            return
        self.stop = EXIT_TERMINATED if number == signal.SIGTERM else EXIT_INTERRUPTED
        if self._abandonable:
            self._abandonable = False
            raise StopRequested

    def report_requested(self) -> bool:
        """Whether diagnostics were requested since the last call."""
        requested, self._report = self._report, False
        return requested

    @contextmanager
    def abandonable(self, allowed: bool = True) -> Iterator[None]:
        """Work inside may be aborted by StopRequested."""
        if allowed and self.stop:
            raise StopRequested
        self._abandonable = allowed
        try:
            yield
        finally:
            self._abandonable = False

    def commit(self) -> None:
        """State is about to change: finish the work before stopping."""
        self._abandonable = False
