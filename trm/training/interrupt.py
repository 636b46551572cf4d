"""SIGTERM and Ctrl-C: stop after a checkpoint, never in the middle of a write."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

EXIT_TERMINATED = 143
EXIT_INTERRUPTED = 130
EXIT_UNFINISHED = 75  # out of time: start the run again to continue (EX_TEMPFAIL of sysexits.h)


class StopRequested(Exception):
    """Raised in the middle of work that may be abandoned."""


class StopSignal:
    """Remembers a stop request; inside `abandonable` it also aborts at once.

    A step on a slow machine can take minutes while a checkpoint is due within seconds, so work that has changed
    nothing yet is thrown away. Used as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self.requested = 0
        """The exit code; 0: no stop was requested."""
        self._abandonable = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = EXIT_TERMINATED if number == signal.SIGTERM else EXIT_INTERRUPTED
        if self._abandonable:
            self._abandonable = False
            raise StopRequested

    @contextmanager
    def abandonable(self, allowed: bool = True) -> Iterator[None]:
        """Work inside may be aborted by StopRequested."""
        if allowed and self.requested:
            raise StopRequested
        self._abandonable = allowed
        try:
            yield
        finally:
            self._abandonable = False

    def commit(self) -> None:
        """The work now changes state: let it finish before stopping."""
        self._abandonable = False


class ReportSignal:
    """Remembers that SIGUSR1 asked for the backend's diagnostics. Used as a context manager, in the main thread."""

    def __init__(self) -> None:
        self._asked = False
        self._previous: Any = None

    def __enter__(self) -> ReportSignal:
        self._previous = signal.signal(signal.SIGUSR1, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGUSR1, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def taken(self) -> bool:
        """Whether a report was requested since the last call."""
        asked, self._asked = self._asked, False
        return asked
