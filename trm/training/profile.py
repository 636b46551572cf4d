"""Profiler traces of training steps, for chrome://tracing or Perfetto."""

from collections.abc import Callable
from pathlib import Path

from trm.backends.base import Backend
from trm.errors import UserError


class Profile:
    """Traces the steps `FIRST:LAST` (from 1, inclusive) into `path`; None: no trace."""

    def __init__(self, steps: str | None, path: Path, backend: Backend):
        self._path, self._backend = path, backend
        self._stop: Callable[[], Path] | None = None
        self._first = self._last = 0
        if steps is not None:
            self._first, self._last = (int(part) for part in steps.split(":"))
            if not 1 <= self._first <= self._last:
                raise UserError(f"runtime.profile_steps={steps}: FIRST must be at least 1 and not above LAST")

    def before(self, step: int) -> None:
        if step == self._first:
            self._stop = self._backend.start_trace(self._path)

    def after(self, step: int) -> None:
        if self._stop is not None and step == self._last:
            self._backend.synchronize()
            written, self._stop = self._stop(), None
            print(f"profiler trace of steps {self._first} to {self._last}: {written}", flush=True)
