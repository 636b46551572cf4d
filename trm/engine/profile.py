"""A profiler trace of some training steps, for chrome://tracing or Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trm.backends.base import Backend
from trm.errors import UserError


class Profile:
    """Records the steps `FIRST:LAST` (counted from 1, both included) into `path`; None records nothing."""

    def __init__(self, steps: str | None, path: Path, backend: Backend):
        self._path, self._backend, self._profiler = path, backend, None
        self._first = self._last = 0
        if steps is not None:
            try:
                self._first, self._last = (int(part) for part in steps.split(":"))
            except ValueError:
                raise UserError(f"--profile-steps {steps}: give FIRST:LAST, two whole numbers") from None
            if not 1 <= self._first <= self._last:
                raise UserError(f"--profile-steps {steps}: FIRST must be at least 1 and not above LAST")

    def before(self, step: int) -> None:
        """Called before each step."""
        if step == self._first:
            from torch.profiler import profile

            self._profiler: Any = profile()
            self._profiler.start()

    def after(self, step: int) -> None:
        """Called after each step."""
        if self._profiler is not None and step == self._last:
            self._backend.synchronize()
            self._profiler.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._profiler = None
            print(f"profiler trace of steps {self._first} to {self._last}: {self._path}", flush=True)
